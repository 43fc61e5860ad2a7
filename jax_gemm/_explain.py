"""What a product would run on, and why: the cost model's own figures, as data and as a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_gemm import _ffi
from jax_gemm._arguments import PrecisionLike, canonical_precision
from jax_gemm._primitive import NoKernel, kernel_precision

if TYPE_CHECKING:
    from jax_gemm import _core

_LAYOUTS = {"nn": ("mk", "kn"), "nt": ("mk", "nk"), "tn": ("km", "kn"), "tt": ("km", "nk")}


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The choice made for one product. `str()` of it is a report.

    `config` is None where no kernel of ours runs; `reason` then says why.
    """

    m: int
    n: int
    k: int
    batch: int
    layout: str
    dtype: str
    out_dtype: str
    device: str
    reason: str = ""
    config: _core.Config | None = None
    estimate: _core.Estimate | None = None
    candidates: tuple[_core.Candidate, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        batch = f" batch {self.batch}" if self.batch != 1 else ""
        product = f"{self.dtype} M {self.m} N {self.n} K {self.k}{batch} {self.layout}"
        lines = [f"{product} to {self.out_dtype} on {self.device}"]
        if self.config is None or self.estimate is None:
            return "\n".join([*lines, self.reason])
        return "\n".join([*lines, "", *_chosen(self.config, self.estimate), *self.notes, *_others(self)])


def explain(
    m: int,
    n: int,
    k: int,
    *,
    dtype: DTypeLike = "bfloat16",
    layout: str = "nn",
    batch: int = 1,
    precision: PrecisionLike = None,
    out_dtype: DTypeLike | None = None,
    device: int | str | None = None,
) -> Explanation:
    """Which kernel configuration `matmul` takes for (M, K) @ (K, N), and why. Nothing is computed.

    Args:
      m: rows of the result.
      n: columns of the result.
      k: terms of each sum.
      dtype: type of both operands.
      layout: for each operand "n" or "t", transposed: "nt" is a stored as (M, K) and b as (N, K).
      batch: number of such products in one call.
      precision: as for `matmul`.
      out_dtype: type of the result; that of the operands by default.
      device: ordinal of a CUDA device, or the name of a known one ("h200", "a100", ...). By default the
        first one present, else "h200".

    Raises:
      ValueError: a size is negative, or the layout or device is not known.
      TypeError: a type is not known.
      RuntimeError: the compiled extension is missing.

    Example:
      >>> print(jax_gemm.explain(4096, 4096, 4096, layout="nt", device="h200"))  # doctest: +SKIP
    """
    if min(m, n, k, batch) < 0:
        raise ValueError(f"jax_gemm.explain: sizes are not negative, got M {m}, N {n}, K {k}, batch {batch}")
    if layout not in _LAYOUTS:
        raise ValueError(f"jax_gemm.explain: layout is one of {', '.join(_LAYOUTS)}, not {layout!r}")
    operand_type, result_type = _dtype(dtype), _dtype(dtype if out_dtype is None else out_dtype)
    core = _ffi.core()
    if device is None:
        device = 0 if core.device_count() else "h200"

    request: dict[str, Any] = {
        "m": m, "n": n, "k": k, "batch": batch, "layout": layout,
        "dtype": operand_type.name, "out_dtype": result_type.name, "device": _device_name(device),
    }  # fmt: skip
    try:
        kernel = kernel_precision(operand_type, result_type, canonical_precision(precision))
    except NoKernel as reason:
        return Explanation(**request, reason=f"goes to XLA: {reason}")
    if 0 in (m, n, batch):
        return Explanation(**request, reason="the result is empty: nothing is launched")

    size = {"z": batch, "m": m, "n": n, "k": k}
    a, b = ("z" * (batch != 1) + labels for labels in _LAYOUTS[layout])
    plan = core.plan(
        f"{a},{b}->{'z' * (batch != 1)}mn",
        [size[label] for label in a],
        [size[label] for label in b],
        operand_type.name, result_type.name, kernel, "", device,
    )  # fmt: skip
    config = next(config for config in core.configs() if config["name"] == plan["config"])
    return Explanation(
        **request,
        config=config,
        estimate=plan["estimate"],
        candidates=tuple(plan["candidates"]),
        notes=_notes(plan),
    )


def _dtype(dtype: DTypeLike) -> np.dtype:
    try:
        return jnp.dtype(dtype)
    except TypeError:
        raise TypeError(f"jax_gemm.explain: {dtype!r} is not the name of a type") from None


def _device_name(device: int | str) -> str:
    core = _ffi.core()
    if isinstance(device, int):
        return str(core.device_facts(device)["name"])
    names = [known["name"] for known in core.known_devices()]
    if device not in names:
        raise ValueError(
            f"jax_gemm.explain: device is an ordinal or one of {', '.join(names)}, not {device!r}"
        )
    return device


def _notes(plan: _core.Plan) -> tuple[str, ...]:
    notes = []
    if plan["swapped"]:
        notes.append("  operands   exchanged: the result's contiguous axis belongs to a")
    alignment = min(plan["a"]["alignment"], plan["b"]["alignment"])
    if alignment < 16:
        notes.append(
            f"  alignment  rows start at multiples of {alignment} bytes: copies of 16 are not possible"
        )
    return tuple(notes)


def _chosen(config: _core.Config, estimate: _core.Estimate) -> list[str]:
    share = estimate["floor_us"] / estimate["total_us"]
    step = "computation" if estimate["compute_us"] >= estimate["memory_us"] else "memory"
    enough = (
        "enough" if config["stages"] >= estimate["stages_needed"] else "fewer than that: some latency shows"
    )
    return [
        f"{config['name']}, the least predicted time of the configurations that can run",
        f"  tile       {config['tile_m']} x {config['tile_n']} x {config['tile_k']} a block of "
        f"{config['threads']} threads, {config['warp_m']} x {config['warp_n']} a warp, {config['math']}",
        f"  stages     {config['stages']} in {config['shared_bytes'] / 1024:g} KiB of shared memory; T_c "
        f"{estimate['compute_us']:.3g} us, T_m {estimate['memory_us']:.3g} us (bound by {step}), latency "
        f"{estimate['latency_us']:.3g} us: {estimate['stages_needed']} hide it, {enough}",
        f"  occupancy  {estimate['blocks_per_sm']} block(s) an SM, {estimate['tiles']:.0f} tiles in "
        f"{estimate['waves']:.2f} waves",
        f"  time       {_us(estimate['total_us'])} predicted, {estimate['tflops']:.1f} TFLOP/s; "
        f"physical limit {_us(estimate['floor_us'])} ({share:.0%})",
    ]


def _others(explanation: Explanation) -> list[str]:
    assert explanation.config is not None
    others = [c for c in explanation.candidates if c["name"] != explanation.config["name"]]
    others.sort(key=lambda c: c["estimate"]["total_us"] if c["estimate"] else float("inf"))
    if not others:
        return []
    width = max(len(candidate["name"]) for candidate in others)
    return ["", "others", *(f"  {c['name']:{width}}  {_prediction(c)}" for c in others)]


def _prediction(candidate: Mapping[str, Any]) -> str:
    estimate = candidate["estimate"]
    if estimate is None:
        return f"cannot run: {candidate['illegal']}"
    return f"{_us(estimate['total_us'])} predicted, {estimate['waves']:.2f} waves"


def _us(us: float) -> str:
    return f"{us:.1f} us" if us < 1e4 else f"{us / 1e3:.1f} ms"
