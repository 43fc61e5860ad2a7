"""A two-layer network under jit: each product is one call of a kernel, on transposed weights too.

Run with `python examples/matmul.py`; without a GPU, XLA computes the same.
"""

import jax
import jax.numpy as jnp

import jax_gemm


@jax.jit
def network(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(
        jax_gemm.matmul(x, up.T)
    )  # up is stored as (hidden, features): nothing is transposed
    return jax_gemm.matmul(hidden, down.T, preferred_element_type=jnp.float32)


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    tokens, features, width = (4, 128), 256, 1024
    x = jax.random.normal(keys[0], (*tokens, features), jnp.bfloat16)
    up = jax.random.normal(keys[1], (width, features), jnp.bfloat16) / features**0.5
    down = jax.random.normal(keys[2], (features, width), jnp.bfloat16) / width**0.5

    out = network(x, up, down)
    print(f"network: {out.dtype} {out.shape} on {out.devices()}\n")
    print(jax_gemm.explain(4 * 128, width, features, layout="nt"))


if __name__ == "__main__":
    main()
