"""A small grid of products for compute-sanitizer: every configuration, all majors, whole and odd sizes."""

from __future__ import annotations

import os

# The sanitizer watches every allocation: let JAX make them one by one, and only as large as needed.
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")

import jax
import jax.numpy as jnp
import numpy as np

import jax_gemm
from jax_gemm import _core

DTYPES = {"bf16": "bfloat16", "f16": "float16", "tf32": "float32", "f32": "float32"}


def check(config: _core.Config, layout: str, m: int, n: int, k: int) -> None:
    """One product of small integers, exact whatever the order."""
    generator = np.random.default_rng(m * n + k)
    a = generator.integers(-2, 3, (m, k) if layout[0] == "n" else (k, m))
    b = generator.integers(-2, 3, (k, n) if layout[1] == "n" else (n, k))
    precision = "highest" if config["math"] == "f32" else None

    @jax.jit
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        a = a if layout[0] == "n" else a.T
        b = b if layout[1] == "n" else b.T
        return jax_gemm.matmul(a, b, precision=precision, backend="cuda", config=config["name"])

    dtype = DTYPES[config["math"]]
    out = np.asarray(product(jnp.asarray(a, dtype), jnp.asarray(b, dtype)), np.float64)
    expected = (a if layout[0] == "n" else a.T) @ (b if layout[1] == "n" else b.T)
    expected = np.asarray(jnp.asarray(expected, jnp.float32).astype(dtype), np.float64)
    np.testing.assert_array_equal(out, expected, err_msg=f"{config['name']} {layout} {m}x{n}x{k}")


def main() -> None:
    count = 0
    for config in _core.configs():
        for layout in ("nn", "nt", "tn", "tt"):
            check(config, layout, config["tile_m"] + 8, config["tile_n"] + 8, config["tile_k"] + 8)
            count += 1
            if config["any_alignment"]:
                check(config, layout, 67, 45, 33)
                count += 1
    print(f"{count} products are right")


if __name__ == "__main__":
    main()
