"""The primitive behind every product: dot_general followed by a permutation of the result's axes.

Its parameters are dot_general's, and four more:

    out_permutation  result = transpose(dot_general(a, b), out_permutation), in one call
    operand_type     type to which operands are rounded first, or None: they are multiplied as they are
    config           name of the kernel configuration, "" for the library's choice
    backend          None, or "cuda": then whatever is not our kernel is an error
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core.primitives import dot_general_p, transpose_p
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jax_gemm import _ffi, _partition, _private
from jax_gemm._labels import DimensionNumbers, Labels, dot_parameters, labels_of

Precision = tuple[lax.Precision, lax.Precision] | lax.DotAlgorithm | lax.DotAlgorithmPreset | None

gemm_p = Primitive("jax_gemm")

# ---- what the kernels compute ----

# Result types by the type of both operands.
KERNEL_TYPES = {
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
    "float32": ("float32",),
}
KERNEL_TYPES_TEXT = "both operands " + "; ".join(
    f"{operand} (result {' or '.join(results)})" for operand, results in KERNEL_TYPES.items()
)

# By operand type and preset: the kernels' precision. DEFAULT leaves the algorithm open.
_PRESETS = {
    ("bfloat16", lax.DotAlgorithmPreset.BF16_BF16_F32): "default",
    ("float16", lax.DotAlgorithmPreset.F16_F16_F32): "default",
    ("float32", lax.DotAlgorithmPreset.TF32_TF32_F32): "default",
    ("float32", lax.DotAlgorithmPreset.F32_F32_F32): "highest",
}


# Presets that round operands of any type to one.
OPERAND_TYPES: dict[Precision, str] = {
    lax.DotAlgorithmPreset.BF16_BF16_F32: "bfloat16",
    lax.DotAlgorithmPreset.F16_F16_F32: "float16",
}


class NoKernel(Exception):
    """No kernel computes this; the message is the bare reason."""


def kernel_precision(operands: np.dtype, result: np.dtype, precision: Precision) -> str:
    """The kernels' name for a precision: "default" or "highest". Raises NoKernel.

    JAX defines Precision on GPUs: DEFAULT and HIGH are tf32, HIGHEST is f32. A pair is computed at the
    higher of the two. 16-bit operands are multiplied exactly at any precision.
    """
    if result.name not in KERNEL_TYPES.get(operands.name, ()):
        raise NoKernel(
            f"no kernel multiplies {operands.name} to {result.name}: they take {KERNEL_TYPES_TEXT}"
        )
    if precision is None or precision == lax.DotAlgorithmPreset.DEFAULT:
        return "default"
    if isinstance(precision, lax.DotAlgorithmPreset):
        if (operands.name, precision) not in _PRESETS:
            raise NoKernel(f"no kernel computes {operands.name} operands by the algorithm {precision}")
        return _PRESETS[operands.name, precision]
    if isinstance(precision, lax.DotAlgorithm):
        raise NoKernel("an explicit DotAlgorithm was asked for")
    return "highest" if lax.Precision.HIGHEST in precision and operands.itemsize == 4 else "default"


# ---- abstract evaluation ----


def _abstract_eval(
    a: Any,
    b: Any,
    *,
    out_permutation: tuple[int, ...],
    operand_type: np.dtype | None,
    config: str,
    backend: str | None,
    **dot: Any,
) -> Any:
    del operand_type, config, backend
    product, _ = dot_general_p.abstract_eval(a, b, **dot)
    out, _ = transpose_p.abstract_eval(product, permutation=out_permutation)
    return out


gemm_p.def_abstract_eval(_abstract_eval)


# ---- evaluation outside jit ----


@functools.lru_cache(maxsize=4096)
def _compiled(**params: Any) -> Any:
    def jax_gemm(a: jax.Array, b: jax.Array) -> jax.Array:
        return gemm_p.bind(a, b, **params)

    return jax.jit(jax_gemm)


@gemm_p.def_impl
def _impl(a: jax.Array, b: jax.Array, **params: Any) -> jax.Array:
    return _compiled(**params)(a, b)


# ---- lowering to XLA: any platform ----


def _with_xla(
    a: jax.Array,
    b: jax.Array,
    *,
    out_permutation: tuple[int, ...],
    operand_type: None,
    config: str,
    backend: str | None,
    **dot: Any,
) -> jax.Array:
    del operand_type, config, backend
    return lax.transpose(lax.dot_general(a, b, **dot), out_permutation)


# ---- lowering to our kernels ----


def _sources(value: Any, labels: str, shape: tuple[int, ...]) -> Iterator[tuple[Any, str, tuple[int, ...]]]:
    """`value` under all transpositions that made it: the innermost source first, `value` itself last."""
    operation = getattr(value.owner, "operation", None)  # None: an argument of a block
    if operation is not None and operation.name == "stablehlo.transpose":
        permutation = [int(axis) for axis in operation.attributes["permutation"]]
        inverse = [permutation.index(axis) for axis in range(len(permutation))]
        yield from _sources(
            operation.operands[0], "".join(labels[i] for i in inverse), tuple(shape[i] for i in inverse)
        )
    yield value, labels, shape


def _in_canonical_form(
    a: jax.Array,
    b: jax.Array,
    *,
    dimension_numbers: DimensionNumbers,
    out_permutation: tuple[int, ...],
    **params: Any,
) -> jax.Array:
    """The product as one of (batch, M, K) and (batch, K, N), which kernels can always read in place."""
    (a_contract, b_contract), (a_batch, b_batch) = dimension_numbers
    a_free = [axis for axis in range(a.ndim) if axis not in (*a_contract, *a_batch)]
    b_free = [axis for axis in range(b.ndim) if axis not in (*b_contract, *b_batch)]

    def grouped(x: jax.Array, *groups: Sequence[int]) -> jax.Array:
        sizes = [math.prod(x.shape[axis] for axis in group) for group in groups]
        return lax.reshape(lax.transpose(x, tuple(itertools.chain(*groups))), sizes)

    product = gemm_p.bind(
        grouped(a, a_batch, a_free, a_contract),
        grouped(b, b_batch, b_contract, b_free),
        dimension_numbers=(((2,), (1,)), ((0,), (0,))),
        out_permutation=(0, 1, 2),
        **params,
    )
    sizes = [a.shape[axis] for axis in (*a_batch, *a_free)] + [b.shape[axis] for axis in b_free]
    return lax.transpose(lax.reshape(product, sizes), out_permutation)


def _unpartitioned(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether each device computes its own product: one device, or a mesh that is manual throughout."""
    axes: Any = ctx.module_context.axis_context
    mesh = getattr(axes, "mesh", None)
    if mesh is not None:
        return frozenset(mesh.axis_names) == axes.manual_axes
    return getattr(axes, "num_devices", None) == 1


def why_not_cuda(ctx: mlir.LoweringRuleContext) -> str:
    platforms = platforms_of(ctx)
    if "cuda" not in platforms:
        return f"the computation is compiled for {', '.join(platforms)}; place its inputs on a CUDA device"
    if reason := _ffi.unavailable():
        _ffi.warn_fallback(reason)
        return reason
    return "" if _unpartitioned(ctx) else _why_not_partitioned(ctx)


def _why_not_partitioned(ctx: mlir.LoweringRuleContext) -> str:
    axes: Any = ctx.module_context.axis_context
    if not _partitionable:
        return "this JAX does not say which devices a product is partitioned over"
    if getattr(axes, "manual_axes", None):
        return "some axes of the mesh are manual and some are not; make all of them manual"
    if len(platforms_of(ctx)) > 1 or getattr(axes, "device_assignment", None) is None:
        return "the program is for devices that are not known while it is lowered; use shard_map"
    avals: list[Any] = [*ctx.avals_in, *ctx.avals_out]
    if not all(isinstance(size, int) for aval in avals for size in aval.shape):
        return "sizes are symbolic on several devices"
    specs = [aval.sharding.spec for aval in avals]
    if any(getattr(spec, "unreduced", None) or getattr(spec, "reduced", None) for spec in specs):
        return "a sum over devices is left open"
    return ""


def lower_to_cuda(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **params: Any) -> Any:
    """One call of our handler, for operands without the transpositions that it can read through."""
    avals: list[Any] = [*ctx.avals_in, *ctx.avals_out]
    a_aval, b_aval, out_aval = avals
    whole = labels_of(params["dimension_numbers"], a_aval.ndim, b_aval.ndim, params["out_permutation"])
    static = all(isinstance(size, int) for size in (*a_aval.shape, *b_aval.shape))
    a_sources, b_sources = [(a, whole.a, a_aval.shape)], [(b, whole.b, b_aval.shape)]
    if static:
        a_sources, b_sources = list(_sources(*a_sources[0])), list(_sources(*b_sources[0]))
    for (a_value, a_labels, a_shape), (b_value, b_labels, b_shape) in itertools.product(a_sources, b_sources):
        labels = Labels(a_labels, b_labels, whole.out)
        if _ffi.core().expressible(str(labels), _known(a_shape), _known(b_shape)):
            continue
        if not _unpartitioned(ctx):
            inner = ctx.replace(
                avals_in=[_permuted(a_aval, whole.a, a_labels), _permuted(b_aval, whole.b, b_labels)]
            )
            return _lower_partitioned(inner, a_value, b_value, labels, **params)
        attributes = {
            "contraction": str(labels),
            "precision": kernel_precision(a_aval.dtype, out_aval.dtype, params["precision"]),
            "config": params["config"],
        }
        if len(platforms_of(ctx)) == 1:
            return jax.ffi.ffi_lowering(_ffi.TARGET)(ctx, a_value, b_value, **attributes)
        if (a_value, b_value) == (a, b):  # the types of other values are not at hand
            by_platform = functools.partial(_by_platform, out=out_aval, attributes=attributes)
            return mlir.lower_fun(by_platform, multiple_results=False)(ctx, a, b, **params)
    if not _unpartitioned(ctx):
        return _lower_partitioned(ctx, a, b, whole, **params)
    return mlir.lower_fun(_in_canonical_form, multiple_results=False)(ctx, a, b, **params)


def _permuted(aval: Any, labels: str, permuted: str) -> Any:
    """The type of what `aval` is a transposition of."""
    axes = [labels.index(label) for label in permuted]
    spec = _partition.full_spec(aval.sharding.spec, aval.ndim)
    sharding = NamedSharding(aval.sharding.mesh, PartitionSpec(*(spec[axis] for axis in axes)))
    return aval.update(shape=tuple(aval.shape[axis] for axis in axes), sharding=sharding)


def _lower_partitioned(ctx: mlir.LoweringRuleContext, a: Any, b: Any, labels: Labels, **params: Any) -> Any:
    """A product of each device's shards, which is lowered in its turn, and what adds them up."""
    dimension_numbers, out_permutation, _ = dot_parameters(labels)
    params |= {"dimension_numbers": dimension_numbers, "out_permutation": out_permutation}

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return gemm_p.bind(a, b, **(params | {"out_sharding": None}))

    avals: list[Any] = [*ctx.avals_in, *ctx.avals_out]
    if AxisType.Explicit in avals[2].sharding.mesh.axis_types:
        partitioned = _partition.explicit(labels, product, *avals)
    else:
        partitioned = _partition.automatic(labels, product, avals[0].shape, avals[1].shape)
    return mlir.lower_fun(partitioned, multiple_results=False)(ctx, a, b)


def _known(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes, with 2 for each that only a run knows: what can be read in place then, can be at any size."""
    return tuple(size if isinstance(size, int) else 2 for size in shape)


def _by_platform(
    a: jax.Array,
    b: jax.Array,
    *,
    out: Any,
    attributes: dict[str, str],
    **params: Any,
) -> jax.Array:
    call = jax.ffi.ffi_call(_ffi.TARGET, jax.ShapeDtypeStruct(out.shape, out.dtype))
    return lax.platform_dependent(
        a, b, cuda=functools.partial(call, **attributes), default=functools.partial(_with_xla, **params)
    )


def platforms_of(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    if getattr(ctx.jaxpr_eqn_ctx, "compute_type", None) == "device_host":
        return ("cpu",)
    return tuple(ctx.platforms or ctx.module_context.platforms)


def _rounded(a: jax.Array, b: jax.Array, *, operand_type: np.dtype, **params: Any) -> jax.Array:
    return gemm_p.bind(a.astype(operand_type), b.astype(operand_type), operand_type=None, **params)


def lower_rounded(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **params: Any) -> Any:
    return mlir.lower_fun(_rounded, multiple_results=False)(ctx, a, b, **params)


def _lower(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **params: Any) -> Any:
    if params["operand_type"] is not None:
        return lower_rounded(ctx, a, b, **params)
    if reason := why_not_cuda(ctx):
        if params["backend"] == "cuda":
            raise RuntimeError(f"jax_gemm: backend='cuda' was asked for, but {reason}")
        return mlir.lower_fun(_with_xla, multiple_results=False)(ctx, a, b, **params)
    return lower_to_cuda(ctx, a, b, **params)


# NOTE: not cacheable, because a cached lowering sees its operands as arguments, and not what made them. One
# rule for all platforms, because JAX 0.8 to 0.11 cannot export uncached rules that differ by platform.
mlir.register_lowering(gemm_p, _lower, cacheable=False)
_partitionable = _private.requires_devices(gemm_p)  # of custom_partitioning
_ffi.unavailable()  # registers the handler, for exported programs that call it without being traced here
