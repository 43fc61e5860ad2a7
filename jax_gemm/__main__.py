"""The command line: `python -m jax_gemm info | explain | bench`."""

from __future__ import annotations

import collections
import importlib
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

import click
import jax
from rich.console import Console
from rich.table import Table

import jax_gemm
from jax_gemm import _ffi

_LAYOUTS = ["nn", "nt", "tn", "tt"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(jax_gemm.__version__, prog_name="jax_gemm")
def main() -> None:
    """Matrix products for JAX on NVIDIA GPUs."""


@main.command()
def info() -> None:
    """Versions, GPUs, kernels built, and what is missing. Exits with 1 if a GPU is there and unusable."""
    rows = [("jax_gemm", jax_gemm.__version__), ("Python", platform.python_version()), *_jax_versions()]
    rows += [*_build(), *_devices()]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    _console().print(table)

    missing = [reason for reason in (_ffi.unavailable(), _ffi.missing_cuda()) if reason]
    for reason in missing:
        click.echo(f"\nmissing: {reason}")
    click.echo(f"\nmatmul is computed by {'XLA' if missing else 'the kernels of jax_gemm on CUDA devices'}")
    if missing and _device_count():
        sys.exit(1)


def _console() -> Console:
    # What goes to a file or a pipe is not folded.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 1000)


def _device_count() -> int:
    try:
        return int(_ffi.core().device_count())
    except RuntimeError:
        return 0


def _jax_versions() -> Iterator[tuple[str, str]]:
    for name in ("jax", "jaxlib"):
        yield name, metadata.version(name)
    plugins = []
    for name in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        try:
            plugins.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    yield "CUDA plugin", ", ".join(plugins) or "none"


def _build() -> Iterator[tuple[str, str]]:
    runtime = f"runtime 0.{_ffi.runtime_api_minor()}"
    try:
        core = _ffi.core()
    except RuntimeError:
        yield "FFI API", runtime
        yield "kernels", "none"
        return
    yield "FFI API", f"{runtime}, built for 0.{core.ffi_api_minor()}"
    build = core.build_info()
    by_family = collections.Counter((config["family"], config["math"]) for config in core.configs())
    kernels = ", ".join(f"{family} {math} x{count}" for (family, math), count in by_family.items())
    yield "kernels", f"{kernels}; CUDA {build['cuda_version']}, architectures {build['architectures']}"


def _devices() -> Iterator[tuple[str, str]]:
    if not _device_count():
        yield "GPU", "none"
    for ordinal in range(_device_count()):
        facts = _ffi.core().device_facts(ordinal)
        major, minor = facts["compute_capability"]
        yield (
            f"GPU {ordinal}",
            f"{facts['name']}, compute capability {major}.{minor}, {facts['sm_count']} SMs, "
            f"{facts['bandwidth_gbs']:.0f} GB/s",
        )
    try:
        yield "JAX devices", ", ".join(str(device) for device in jax.devices())
    except RuntimeError as error:
        yield "JAX devices", f"none: {error}"


@main.command()
@click.argument("m", type=click.IntRange(min=0))
@click.argument("n", type=click.IntRange(min=0))
@click.argument("k", type=click.IntRange(min=0))
@click.option("--dtype", default="bfloat16", show_default=True, help="Type of both operands.")
@click.option("--out-dtype", help="Type of the result; the operands' by default.")
@click.option(
    "--layout", type=click.Choice(_LAYOUTS), default="nn", show_default=True, help="t: stored transposed."
)
@click.option("--batch", type=click.IntRange(min=0), default=1, show_default=True, help="Number of products.")
@click.option("--precision", help="As in jax.numpy.matmul: default, highest, TF32_TF32_F32, ...")
@click.option("--device", help="Ordinal or name (h200); by default the GPU that is present, else h200.")
def explain(
    m: int,
    n: int,
    k: int,
    dtype: str,
    out_dtype: str | None,
    layout: str,
    batch: int,
    precision: str | None,
    device: str | None,
) -> None:
    """The configuration chosen for an (M, K) by (K, N) product, and why."""
    try:
        explanation = jax_gemm.explain(
            m,
            n,
            k,
            dtype=dtype,
            out_dtype=out_dtype,
            layout=layout,
            batch=batch,
            precision=precision,
            device=int(device) if device and device.isdecimal() else device,
        )
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(str(explanation))


@main.command()
@click.option("--suite", "suites", multiple=True, help="Run only this suite; may be given several times.")
@click.option("--quick", is_flag=True, help="Few repetitions.")
@click.option("--output", type=click.Path(dir_okay=False), help="Append JSON lines to this file.")
def bench(suites: tuple[str, ...], quick: bool, output: str | None) -> None:
    """Measure against jnp.dot, interleaved in one process."""
    try:
        benchmark = importlib.import_module("jax_gemm._bench")
    except ImportError as error:
        raise click.ClickException(f"benchmarks cannot be loaded: {error}") from error
    try:
        sys.exit(benchmark.main(suites=list(suites), quick=quick, output=output))
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main(prog_name="python -m jax_gemm")
