"""One large product for ncu: `ncu ... python benchmarks/profile_one.py bf16 nn`."""

from __future__ import annotations

import os
import sys

# ncu saves and restores all allocated memory around each pass: let JAX allocate no more than it needs.
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")

import jax

import jax_gemm
from jax_gemm._cases import Case

TYPES = {"bf16": ("bfloat16", None), "f16": ("float16", None), "tf32": ("float32", None)}


def main(math: str, layout: str, size: int = 4096) -> None:
    dtype, precision = TYPES.get(math, ("float32", "highest"))
    case = Case("profile", size, size, size, layout, dtype)
    a, b = case.operands(jax.random.key(0))

    @jax.jit
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax_gemm.matmul(*case.view(a, b), precision=precision, backend="cuda")

    for _ in range(2):
        product(a, b).block_until_ready()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(size) for size in sys.argv[3:]))
