"""Operands on which a product is exact, and the product in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

KERNEL_DTYPES = ("bfloat16", "float16", "float32")
# (operands, result, precision): every product that kernels compute.
KERNEL_PRODUCTS = (
    ("bfloat16", "bfloat16", "default"),
    ("bfloat16", "float32", "default"),
    ("float16", "float16", "default"),
    ("float16", "float32", "default"),
    ("float32", "float32", "default"),
    ("float32", "float32", "highest"),
)


def integers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> jax.Array:
    """Integers from -3 to 3: their products' sums are exact in float32 in any order, to K = 10^6."""
    low, high = (0, 4) if np.issubdtype(jnp.dtype(dtype), np.unsignedinteger) else (-3, 4)
    return jnp.asarray(np.random.default_rng([seed, *shape]).integers(low, high, shape), dtype)


def product(a: Any, b: Any, dtype: Any) -> np.ndarray:
    """The product in float64, rounded once to `dtype`."""
    return np.matmul(np.asarray(a, np.float64), np.asarray(b, np.float64)).astype(jnp.dtype(dtype))


def assert_equal(out: jax.Array, expected: np.ndarray) -> None:
    assert out.shape == expected.shape
    assert out.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(out, np.float64), expected.astype(np.float64))


def primitives(function: Any, *args: Any) -> list[str]:
    """Names of the primitives of a trace, those of inner jaxprs included."""

    def names(jaxpr: Any) -> list[str]:
        found = []
        for eqn in jaxpr.eqns:
            inner = [p.jaxpr for p in eqn.params.values() if hasattr(p, "jaxpr")]
            found += [name for j in inner for name in names(j)] if inner else [eqn.primitive.name]
        return found

    return names(jax.make_jaxpr(function)(*args).jaxpr)
