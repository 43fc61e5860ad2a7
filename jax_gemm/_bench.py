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
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import jax_gemm
from jax_gemm import _ffi
from jax_gemm._cases import Case, select_cases
from jax_gemm._timing import interleaved_medians

# Operands are rotated until this much lies between two uses of one: several times the L2 of any GPU.
_ROTATED_BYTES = 512 << 20
_REPETITIONS = 12
# Floor of the error bound: a unit roundoff of the accumulators and their order.
_ERROR_FLOOR = 1e-6
_LOG_WIDTH = 160  # of the table, where the output goes to a file
_Product = Callable[[jax.Array, jax.Array], jax.Array]


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
                _check(case.small(), *_products(case.small()))
            else:
                results.append(_measure(case, repetitions=5 if quick else _REPETITIONS))
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


def _products(case: Case) -> tuple[_Product, _Product]:
    """Ours and JAX's, jitted, on operands as they lie in memory."""
    backend: Literal["cuda"] | None = None if _ffi.missing_cuda() else "cuda"

    def ours(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = case.view(a, b)
        return jax_gemm.matmul(a, b, precision=case.precision, backend=backend, config=case.config)

    def base(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(*case.view(a, b), precision=case.precision)

    return jax.jit(ours), jax.jit(base)


def _check(case: Case, ours: _Product, base: _Product) -> float:
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
    errors = [
        float(np.linalg.norm(sample(f(a, b), rows[:, None], columns) - expected)) / norm for f in (ours, base)
    ]
    if not errors[0] <= 2 * errors[1] + _ERROR_FLOOR:
        raise AssertionError(f"its error is {errors[0]:.2e}, that of jnp.matmul {errors[1]:.2e}")
    return errors[0]


def _measure(case: Case, repetitions: int) -> Result:
    ours, base = _products(case)
    a, b = case.operands(jax.random.key(0))
    if _ffi.TARGET not in (jax.jit(ours).lower(a, b).compile().as_text() or ""):
        raise AssertionError("it is not computed by our kernels")
    error = _check(case, ours, base)
    count = max(1, min(8, math.ceil(_ROTATED_BYTES / case.bytes)))
    sets = [(a, b), *(case.operands(jax.random.key(i)) for i in range(1, count))]
    for function in (ours, base):  # compile and warm up
        function(a, b).block_until_ready()
    ours_us, base_us = interleaved_medians([ours, base], sets, repetitions)
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
        config=case.config or _chosen(case),
        error=float(f"{error:.3e}"),
        commit=_commit(),
        jax=jax.__version__,
        device=jax.devices("cuda")[0].device_kind,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _chosen(case: Case) -> str:
    explanation = jax_gemm.explain(
        case.m,
        case.n,
        case.k,
        dtype=case.dtype,
        layout=case.layout,
        batch=case.batch,
        precision=case.precision,
    )
    return explanation.config["name"] if explanation.config else ""


def _commit() -> str:
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
