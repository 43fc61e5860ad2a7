"""The primitive behind every product: dot_general followed by a permutation of the result's axes.

Its parameters are dot_general's, and three more:

    out_permutation  result = transpose(dot_general(a, b), out_permutation), in one call
    config           name of the kernel configuration, "" for the library's choice
    backend          None, or "cuda": then whatever is not our kernel is an error
"""

from __future__ import annotations

import functools
import itertools
import math
import string
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.extend.core.primitives import dot_general_p, transpose_p
from jax.interpreters import mlir

from jax_gemm import _ffi

DimensionNumbers = tuple[
    tuple[tuple[int, ...], tuple[int, ...]],  # contracted axes of a, of b
    tuple[tuple[int, ...], tuple[int, ...]],  # batch axes of a, of b
]
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
    a: Any, b: Any, *, out_permutation: tuple[int, ...], config: str, backend: str | None, **dot: Any
) -> Any:
    del config, backend
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
    config: str,
    backend: str | None,
    **dot: Any,
) -> jax.Array:
    del config, backend
    return lax.transpose(lax.dot_general(a, b, **dot), out_permutation)


# ---- lowering to our kernels ----


def contraction(
    dimension_numbers: DimensionNumbers, a_ndim: int, b_ndim: int, out_permutation: Sequence[int]
) -> tuple[str, str, str]:
    """The labels of a, b and out: one letter an axis, as in einsum."""
    (a_contract, b_contract), (a_batch, b_batch) = dimension_numbers
    a_labels = list(string.ascii_letters[:a_ndim])
    b_labels = list(string.ascii_letters[a_ndim : a_ndim + b_ndim])
    for a_axis, b_axis in zip((*a_contract, *a_batch), (*b_contract, *b_batch), strict=True):
        b_labels[b_axis] = a_labels[a_axis]
    product = [a_labels[axis] for axis in a_batch]
    product += [a_labels[axis] for axis in range(a_ndim) if axis not in (*a_contract, *a_batch)]
    product += [b_labels[axis] for axis in range(b_ndim) if axis not in (*b_contract, *b_batch)]
    return "".join(a_labels), "".join(b_labels), "".join(product[axis] for axis in out_permutation)


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


def _why_not_cuda(ctx: mlir.LoweringRuleContext) -> str:
    platforms = _platforms(ctx)
    if "cuda" not in platforms:
        return f"the computation is compiled for {', '.join(platforms)}; place its inputs on a CUDA device"
    if reason := _ffi.unavailable():
        _ffi.warn_fallback(reason)
        return reason
    if not _unpartitioned(ctx):
        return "products are not yet partitioned over an automatic or explicit mesh; use shard_map"
    return ""


def _lower_to_cuda(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **params: Any) -> Any:
    """One call of our handler, for operands without the transpositions that it can read through."""
    avals: list[Any] = [*ctx.avals_in, *ctx.avals_out]
    a_aval, b_aval, out_aval = avals
    a_labels, b_labels, out_labels = contraction(
        params["dimension_numbers"], a_aval.ndim, b_aval.ndim, params["out_permutation"]
    )
    attributes = {
        "precision": kernel_precision(a_aval.dtype, out_aval.dtype, params["precision"]),
        "config": params["config"],
    }
    a_sources, b_sources = [(a, a_labels, a_aval.shape)], [(b, b_labels, b_aval.shape)]
    static = all(isinstance(size, int) for size in (*a_aval.shape, *b_aval.shape))
    if static:
        a_sources, b_sources = list(_sources(*a_sources[0])), list(_sources(*b_sources[0]))
    for a_source, b_source in itertools.product(a_sources, b_sources):
        (a_value, a_labels, a_shape), (b_value, b_labels, b_shape) = a_source, b_source
        attributes["contraction"] = f"{a_labels},{b_labels}->{out_labels}"
        if _ffi.core().expressible(attributes["contraction"], _known(a_shape), _known(b_shape)):
            continue
        if len(_platforms(ctx)) == 1:
            return jax.ffi.ffi_lowering(_ffi.TARGET)(ctx, a_value, b_value, **attributes)
        if (a_value, b_value) == (a, b):  # the types of other values are not at hand
            by_platform = functools.partial(_by_platform, out=out_aval, attributes=attributes)
            return mlir.lower_fun(by_platform, multiple_results=False)(ctx, a, b, **params)
    return mlir.lower_fun(_in_canonical_form, multiple_results=False)(ctx, a, b, **params)


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


def _platforms(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    if getattr(ctx.jaxpr_eqn_ctx, "compute_type", None) == "device_host":
        return ("cpu",)
    return tuple(ctx.platforms or ctx.module_context.platforms)


def _lower(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **params: Any) -> Any:
    if reason := _why_not_cuda(ctx):
        if params["backend"] == "cuda":
            raise RuntimeError(f"jax_gemm: backend='cuda' was asked for, but {reason}")
        return mlir.lower_fun(_with_xla, multiple_results=False)(ctx, a, b, **params)
    return _lower_to_cuda(ctx, a, b, **params)


# NOTE: not cacheable, because a cached lowering sees its operands as arguments, and not what made them. One
# rule for all platforms, because JAX 0.8 to 0.11 cannot export uncached rules that differ by platform.
mlir.register_lowering(gemm_p, _lower, cacheable=False)
_ffi.unavailable()  # registers the handler, for exported programs that call it without being traced here
