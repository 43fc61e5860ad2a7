"""Times configurations against each other, interleaved, to choose what stands in the table.

    python benchmarks/sweep.py --math bf16 --layout nn --layout tn 4096x4096x4096 8192x14336x4096
    python benchmarks/sweep.py --config sm80_bf16_128x128x64_w64x64_s3 --output sweep.jsonl 16x4096x4096

Without --config every configuration of the math takes part. A star marks the best of a row, brackets the
library's own choice.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import click
import jax
from rich.console import Console
from rich.table import Table

from jax_gemm import _ffi
from jax_gemm._bench import base, check, chosen, commit, ours, require_kernel, rotation
from jax_gemm._cases import Case
from jax_gemm._timing import interleaved_medians

LAYOUTS = ["nn", "nt", "tn", "tt"]
TYPES = {
    "bf16": ("bfloat16", None),
    "f16": ("float16", None),
    "tf32": ("float32", None),
    "f32": ("float32", "highest"),
}


def sweep(case: Case, names: list[str], repetitions: int) -> tuple[dict[str, float], dict[str, str]]:
    """Median microseconds of each configuration and of jnp.matmul ("base"); why others cannot run."""
    functions, failures = {"base": base(case)}, {}
    for name in names:
        forced = dataclasses.replace(case, config=name)
        product = ours(forced, name)
        try:
            require_kernel(forced, product)
            check(forced, product, functions["base"])
        except Exception as error:  # one that is illegal or wrong must not cost the others
            failures[name] = str(error).splitlines()[0]
        else:
            functions[name] = product
    sets, evict = rotation(case)
    times = interleaved_medians(list(functions.values()), sets, repetitions, evict=evict)
    return dict(zip(functions, times, strict=True)), failures


@click.command(help=__doc__)
@click.argument("shapes", nargs=-1, required=True, metavar="MxNxK...")
@click.option("--math", type=click.Choice(list(TYPES)), default="bf16", show_default=True)
@click.option("--layout", "layouts", multiple=True, type=click.Choice(LAYOUTS), default=["nn"])
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--config", "names", multiple=True, help="Only these, all of one math.")
@click.option("--repetitions", type=click.IntRange(min=2), default=12, show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=pathlib.Path), help="Append JSON lines.")
def main(
    shapes: tuple[str, ...],
    math: str,
    layouts: tuple[str, ...],
    batch: int,
    names: tuple[str, ...],
    repetitions: int,
    output: pathlib.Path | None,
) -> None:
    if missing := _ffi.missing_cuda():
        raise click.ClickException(f"there is no GPU to time: {missing}")
    table = {config["name"]: config["math"] for config in _ffi.core().configs()}
    if unknown := [name for name in names if name not in table]:
        raise click.UsageError(f"no configuration is called {unknown[0]!r}; there are {', '.join(table)}")
    if len(maths := {table[name] for name in names}) > 1:
        raise click.UsageError(f"configurations of one math, got {', '.join(sorted(maths))}")
    math = next(iter(maths), math)
    configs = list(names) or [name for name, of in table.items() if of == math]
    dtype, precision = TYPES[math]
    cases = []
    for shape in shapes:
        try:
            m, n, k = map(int, shape.split("x"))
        except ValueError:
            raise click.UsageError(f"a shape is MxNxK, as 4096x4096x4096, got {shape!r}") from None
        cases += [Case("sweep", m, n, k, layout, dtype, batch, precision) for layout in layouts]

    console = Console(width=None if sys.stdout.isatty() else 200)
    rates = Table("TFLOP/s", "layout", "jnp.matmul", *configs)
    failed = []
    for case in cases:
        times, failures = sweep(case, configs, repetitions)
        failed += [f"{case} {name}: {reason}" for name, reason in failures.items()]
        best = min((name for name in times if name != "base"), key=times.__getitem__, default=None)
        choice, row = chosen(case), []
        for name in ("base", *configs):
            text = f"{case.operations / times[name] / 1e6:.1f}" if name in times else "-"
            text = f"({text})" if name == choice else text
            row.append(f"{text}*" if name == best else text)
        rates.add_row(f"{case.m}x{case.n}x{case.k}", case.layout, *row)
        if output is not None:
            fields = {name: getattr(case, name) for name in ("dtype", "layout", "batch", "m", "n", "k")}
            with output.open("a") as file:
                for name, us in times.items():
                    line = {**fields, "math": math, "config": name, "chosen": name == choice}
                    line |= {"us": round(us, 3), "tflops": round(case.operations / us / 1e6, 1)}
                    line |= {"commit": commit(), "jax": jax.__version__}
                    line |= {"device": jax.devices("cuda")[0].device_kind}
                    file.write(json.dumps(line) + "\n")
    console.print(rates)
    for line in failed:
        console.print(line, soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
