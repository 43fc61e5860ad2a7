"""`python -m jax_gemm bench`: our kernels against `jnp.matmul`, interleaved in one process."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import jax_gemm
from jax_gemm import _ffi
from jax_gemm._cases import Case, error_bound, select_cases
from jax_gemm._timing import ROTATED_BYTES, interleaved_medians

_REPETITIONS = 12
_MAX_SETS = 8  # of operands; where more were needed, the L2 is evicted instead
_LOG_WIDTH = 160  # of the table, where the output goes to a file
_Product = jax.stages.Wrapped


@dataclasses.dataclass(frozen=True)
class Result:
    """One line of the results. Times in microseconds of device time; `error` is normwise, against float64."""

    suite: str
    op: str
    dtype: str
    layout: str
    batch: int
    m: int
    n: int
    k: int
    groups: int | None
    ours_us: float
    base_us: float
    base: str
    speedup: float
    tflops: float
    gbps: float
    config: str
    error: float
    commit: str
    jax: str
    device: str
    date: str


def main(suites: list[str], quick: bool, output: str | None) -> int:
    """Measures the suites (all if none is named), prints a table, appends a JSON line for each case.

    On a machine without GPU the same cases run small and are checked, but not timed. Returns the exit code.
    """
    console = Console()
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    cases = select_cases(suites)
    if quick:
        cases = [case for i, case in enumerate(cases) if i == 0 or case.suite != cases[i - 1].suite]
    missing = _ffi.missing_cuda()
    path = None if missing else _output_path(output)
    results, failures = [], []
    for case in track(cases, "measuring" if not missing else "checking", console=console):
        try:
            if missing:
                small = case.small()
                check(small, ours(small), base(small))
            else:
                results.append(measure(case, repetitions=6 if quick else _REPETITIONS))
                _append(path, results[-1])
        except Exception as error:  # one case must not cost the others
            failures.append(f"{case}: {error}")
    if missing:
        console.print(f"{len(cases) - len(failures)} of {len(cases)} cases computed right, at small sizes.")
        console.print(f"There is no GPU to time: {missing}.", soft_wrap=True, markup=False)
    elif results:
        console.print(_table(results))
        console.print(f"appended to {path}", soft_wrap=True)
    for failure in failures:
        console.print(f"failed: {failure}", style="red", soft_wrap=True, markup=False)
    return 1 if failures else 0


def ours(case: Case, name: str = "ours") -> _Product:
    """Our product, jitted, on operands as they lie in memory; the profiler knows it by `name`."""
    backend: Literal["cuda"] | None = None if _ffi.missing_cuda() else "cuda"
    config = case.config or (chosen(case) if case.family else None)

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = case.view(a, b)
        return jax_gemm.matmul(a, b, precision=case.precision, backend=backend, config=config)

    product.__name__ = name
    return jax.jit(product)


def base(case: Case) -> _Product:
    """JAX's product, likewise."""

    def base(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(*case.view(a, b), precision=case.precision)

    return jax.jit(base)


def check(case: Case, product: _Product, base: _Product) -> float:
    """Our normwise error on a sample of the output; raises if it is over twice JAX's."""
    a, b = case.operands(jax.random.key(0))
    rows = np.unique(np.linspace(0, case.m - 1, 64, dtype=np.int64))
    columns = np.unique(np.linspace(0, case.n - 1, 128, dtype=np.int64))

    def sample(x: jax.Array, *axes: Any) -> np.ndarray[Any, Any]:
        matrix = x[-1] if case.batch > 1 else x  # the last of a batch has the largest offset
        return np.asarray(matrix[axes], np.float64)

    full_a, full_b = case.view(a, b)
    expected = sample(full_a, rows) @ sample(full_b, slice(None), columns)
    norm = float(np.linalg.norm(expected)) or 1.0
    out = jax.eval_shape(product, a, b)
    errors = []
    for function in (product, base):
        # The allocator hands freed memory out again: what is not written shows as NaN.
        jnp.full(out.shape, jnp.nan, out.dtype).block_until_ready().delete()
        difference = sample(function(a, b), rows[:, None], columns) - expected
        errors.append(float(np.linalg.norm(difference)) / norm)
    if not errors[0] <= error_bound(errors[1], case.k):
        raise AssertionError(f"its error is {errors[0]:.2e}, that of jnp.matmul {errors[1]:.2e}")
    return errors[0]


def require_kernel(case: Case, product: _Product) -> None:
    """Raises unless a call of our kernels is compiled: a fallback is never measured as ours."""
    if _ffi.TARGET not in (product.lower(*case.operand_types()).compile().as_text() or ""):
        raise AssertionError("it is not computed by our kernels")


def rotation(case: Case) -> tuple[list[tuple[jax.Array, jax.Array]], bool]:
    """Sets of operands, and whether they are too small to displace each other from the L2."""
    needed = max(1, math.ceil(ROTATED_BYTES / max(1, case.bytes)))
    sets = [case.operands(jax.random.key(i)) for i in range(min(needed, _MAX_SETS))]
    return sets, needed > _MAX_SETS


def measure(case: Case, repetitions: int) -> Result:
    functions = [ours(case), base(case)]
    require_kernel(case, functions[0])
    error = check(case, *functions)
    sets, evict = rotation(case)
    ours_us, base_us = interleaved_medians(functions, sets, repetitions, evict=evict)
    return Result(
        suite=case.suite,
        op="matmul",
        dtype=case.dtype if case.precision is None else f"{case.dtype}/{case.precision}",
        layout=case.layout,
        batch=case.batch,
        m=case.m,
        n=case.n,
        k=case.k,
        groups=None,
        ours_us=round(ours_us, 3),
        base_us=round(base_us, 3),
        base="jnp.matmul",
        speedup=round(base_us / ours_us, 4),
        tflops=round(case.operations / ours_us / 1e6, 1),
        gbps=round(case.bytes / ours_us / 1e3, 1),
        config=case.config or chosen(case),
        error=float(f"{error:.3e}"),
        commit=commit(),
        jax=jax.__version__,
        device=jax.devices("cuda")[0].device_kind,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def chosen(case: Case) -> str:
    """The configuration that the library takes, of the case's family if it names one."""
    explanation = jax_gemm.explain(
        case.m,
        case.n,
        case.k,
        dtype=case.dtype,
        layout=case.layout,
        batch=case.batch,
        precision=case.precision,
    )
    if case.family is None:
        return explanation.config["name"] if explanation.config else ""
    family = {c["name"] for c in _ffi.core().configs() if c["family"] == case.family}
    legal = {
        c["name"]: c["estimate"]["total_us"]
        for c in explanation.candidates
        if c["estimate"] and c["name"] in family
    }
    if not legal:
        raise ValueError(f"no configuration of the family {case.family} can compute {case}")
    return min(legal, key=legal.__getitem__)


def commit() -> str:
    """The commit measured: of this checkout, or what JAX_GEMM_COMMIT says of a copy of one."""
    if commit := os.environ.get("JAX_GEMM_COMMIT"):
        return commit
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return "unknown"


def _output_path(output: str | None) -> pathlib.Path:
    device = jax.devices("cuda")[0].device_kind.lower().replace(" ", "-")
    path = pathlib.Path(output or f"benchmarks/results/{device}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _append(path: pathlib.Path | None, result: Result) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")


def _table(results: list[Result]) -> Table:
    table = Table(
        "suite", "product", "layout", "dtype", "ours us", "jnp us", "speedup", "TFLOP/s", "GB/s", "config"
    )
    for column in table.columns[4:9]:
        column.justify = "right"
    for suite, group in _by_suite(results):
        for r in group:
            shape = (f"[{r.batch}] " if r.batch > 1 else "") + f"{r.m}x{r.n}x{r.k}"
            figures = (
                f"{r.ours_us:.1f}",
                f"{r.base_us:.1f}",
                f"{r.speedup:.3f}",
                f"{r.tflops:.0f}",
                f"{r.gbps:.0f}",
            )
            table.add_row(suite, shape, r.layout, r.dtype, *figures, r.config)
        mean = math.exp(sum(math.log(r.speedup) for r in group) / len(group))
        table.add_row(suite, "geometric mean", "", "", "", "", f"{mean:.3f}", "", "", "", end_section=True)
    return table


def _by_suite(results: list[Result]) -> Iterator[tuple[str, list[Result]]]:
    for suite in dict.fromkeys(r.suite for r in results):
        yield suite, [r for r in results if r.suite == suite]
