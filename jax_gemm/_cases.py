"""The benchmark's suites: which products are measured, and their operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Case:
    """One product: [batch] M x K times K x N.

    `layout` is BLAS': "nt" means that b lies in memory as N x K. `config` forces a configuration of ours,
    `family` one of a kernel family.
    """

    suite: str
    m: int
    n: int
    k: int
    layout: str = "nn"
    dtype: str = "bfloat16"
    batch: int = 1
    precision: str | None = None
    config: str | None = None
    family: str | None = None

    def __str__(self) -> str:
        batch = f"[{self.batch}] " if self.batch > 1 else ""
        return f"{self.suite} {batch}{self.m}x{self.n}x{self.k} {self.layout} {self.dtype}"

    @property
    def operations(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return self.batch * elements * jnp.dtype(self.dtype).itemsize

    def small(self) -> Case:
        """The same kind of product, at a size that a CPU can check."""

        def cap(size: int) -> int:
            return size if size <= 64 else 64 + size % 64

        return dataclasses.replace(
            self, m=cap(self.m), n=cap(self.n), k=cap(self.k), batch=min(self.batch, 3)
        )

    def operands(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """N(0, 1) operands as they lie in memory: transposed where `layout` says "t"."""
        a, b = self.operand_types()
        keys = jax.random.split(key)
        return jax.random.normal(keys[0], a.shape, a.dtype), jax.random.normal(keys[1], b.shape, b.dtype)

    def operand_types(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        batch = (self.batch,) if self.batch > 1 else ()
        a = (self.m, self.k) if self.layout[0] == "n" else (self.k, self.m)
        b = (self.k, self.n) if self.layout[1] == "n" else (self.n, self.k)
        dtype = jnp.dtype(self.dtype)
        return jax.ShapeDtypeStruct(batch + a, dtype), jax.ShapeDtypeStruct(batch + b, dtype)

    def view(self, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The operands as the product takes them, [batch] M x K and K x N."""
        a = a if self.layout[0] == "n" else jnp.swapaxes(a, -1, -2)
        b = b if self.layout[1] == "n" else jnp.swapaxes(b, -1, -2)
        return a, b


def error_bound(base: float, k: int) -> float:
    """What a normwise error against float64 may be, where that of jnp.matmul over the same `k` is `base`.

    The floor is what rounding costs a sum of `k` terms in float32, sqrt(k) unit roundoffs (Higham and Mary,
    SIAM J. Sci. Comput. 41, 2019): XLA may divide a small product's K among blocks, whose shorter sums err
    less.
    """
    return 2 * base + math.sqrt(max(1, k)) * 2.0**-24


def _large(suite: str, dtype: str = "bfloat16") -> Iterator[Case]:
    for layout in ("nn", "nt", "tn"):
        yield Case(suite, 4096, 4096, 4096, layout, dtype)
        yield Case(suite, 8192, 8192, 8192, layout, dtype)
    for m, n, k in (
        (8192, 4096, 4096),
        (8192, 14336, 4096),
        (8192, 4096, 14336),
        (4096, 28672, 8192),
        (8192, 128256, 4096),
    ):
        yield Case(suite, m, n, k, dtype=dtype)


def _large_sm80() -> Iterator[Case]:
    for layout in ("nn", "nt", "tn", "tt"):
        yield Case("large_sm80", 4096, 4096, 4096, layout, family="sm80")
        yield Case("large_sm80", 8192, 8192, 8192, layout, family="sm80")


def _prefill() -> Iterator[Case]:
    for m in (128, 512, 2048):
        for n, k in ((4096, 4096), (14336, 4096), (4096, 14336)):
            yield Case("prefill", m, n, k)


def _decode() -> Iterator[Case]:
    for m in (1, 4, 8, 16, 32, 64):
        for n, k in ((4096, 4096), (28672, 4096), (4096, 14336), (2048, 2048)):
            yield Case("decode", m, n, k)


def _small() -> Iterator[Case]:
    for size in (128, 256, 512, 1024, 2048):
        yield Case("small", size, size, size)


def _deepk() -> Iterator[Case]:
    yield Case("deepk", 256, 256, 65536, "tn")
    yield Case("deepk", 1024, 1024, 131072, "tn")
    yield Case("deepk", 64, 4096, 32768, "tn")
    yield Case("deepk", 4096, 256, 7168)


def _odd() -> Iterator[Case]:
    for m, n, k in (
        (4095, 4097, 4099),
        (1000, 1000, 1000),
        (127, 129, 131),
        (2049, 50257, 768),
        (8192, 768, 50257),
        (333, 777, 555),
        (4096, 4098, 4096),
        (4096, 4096, 4097),
    ):
        yield Case("odd", m, n, k)


def _batched() -> Iterator[Case]:
    yield Case("batched", 512, 512, 64, "nt", batch=256)
    yield Case("batched", 512, 64, 512, batch=256)
    yield Case("batched", 128, 128, 128, batch=1024)
    yield Case("batched", 33, 65, 127, batch=1024)
    yield Case("batched", 2048, 2048, 128, "nt", batch=64)
    yield Case("batched", 64, 64, 64, batch=4096)
    yield Case("batched", 1, 4096, 4096, batch=16)


def _types(suite: str, dtype: str, precision: str | None = None) -> Iterator[Case]:
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 14336, 4096), (1000, 1000, 1000)):
        for layout in ("nn", "nt", "tn"):
            yield Case(suite, m, n, k, layout, dtype, precision=precision)


SUITES: dict[str, Callable[[], Iterator[Case]]] = {
    "large_sm80": _large_sm80,
    "large": lambda: _large("large"),
    "prefill": _prefill,
    "decode": _decode,
    "small": _small,
    "deepk": _deepk,
    "odd": _odd,
    "batched": _batched,
    "f16": lambda: _types("f16", dtype="float16"),
    "tf32": lambda: _types("tf32", dtype="float32"),
    "f32": lambda: _types("f32", dtype="float32", precision="highest"),
}


def select_cases(suites: list[str]) -> list[Case]:
    """The cases of the named suites, all of them if none is named. Raises ValueError for other names."""
    unknown = [name for name in suites if name not in SUITES]
    if unknown:
        raise ValueError(f"no suite is called {unknown[0]!r}; there are {', '.join(SUITES)}")
    return [case for name in suites or SUITES for case in SUITES[name]()]
