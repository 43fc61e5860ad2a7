"""`dot_general` itself on our kernels: programs that do not name this library, unchanged.

Only its lowering is replaced, and that of transpose where it is applied to a product. Differentiation,
batching, rematerialisation and sharding never see ours.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.extend.core.primitives import dot_general_p, transpose_p
from jax.interpreters import mlir

from jax_gemm import _ffi, _private
from jax_gemm._labels import DimensionNumbers
from jax_gemm._primitive import (
    KERNEL_TYPES,
    OPERAND_TYPES,
    NoKernel,
    Precision,
    kernel_precision,
    lower_rounded,
    lower_to_cuda,
    platforms_of,
    why_not_cuda,
)

# ---- which products ----


def dot_general_precision(a: Any, b: Any, out: Any, precision: Precision) -> str:
    """`kernel_precision` of a dot_general, from its abstract values. Raises NoKernel."""
    operand_type = operands_as(a, b, precision)
    if a.dtype != b.dtype and operand_type is None:
        raise NoKernel(f"its operands are of different types, {a.dtype.name} and {b.dtype.name}")
    kernel = kernel_precision(operand_type or a.dtype, out.dtype, precision)
    if not all(isinstance(size, int) for size in (*a.shape, *b.shape)):
        raise NoKernel("a size is symbolic")
    return kernel


def operands_as(a: Any, b: Any, precision: Precision) -> np.dtype | None:
    """The type to which the algorithm rounds operands of others; None if it has none to round."""
    name = OPERAND_TYPES.get(precision)
    if name is None or a.dtype == b.dtype == name:
        return None
    return jax.numpy.dtype(name) if {a.dtype.name, b.dtype.name} <= KERNEL_TYPES.keys() else None


def matrix_sizes(
    dimension_numbers: DimensionNumbers, a_shape: tuple[int, ...], b_shape: tuple[int, ...]
) -> tuple[int, int, int]:
    """M, N and K."""
    (a_contract, b_contract), (a_batch, b_batch) = dimension_numbers
    k = math.prod(a_shape[axis] for axis in a_contract)
    m = math.prod(a_shape[axis] for axis in range(len(a_shape)) if axis not in (*a_contract, *a_batch))
    n = math.prod(b_shape[axis] for axis in range(len(b_shape)) if axis not in (*b_contract, *b_batch))
    return m, n, k


def why_not_a_gemm(sizes: tuple[int, int, int]) -> str:
    """Why XLA itself would not call a library for a product of these sizes, or "".

    It computes such products in one kernel with their neighbours, and float32 in full: a call of ours would
    be slower, and less exact by default. The limit is that of `xla_gpu_gemm_rewrite_size_threshold`.
    """
    m, n, k = sizes
    if 1 in (m, n):
        return "it has one row or one column, and XLA fuses it with its neighbours"
    if (m + n) * k < 100:
        return "it is so small that XLA fuses it with its neighbours"
    return ""


def why_not_worthwhile(kernel: str, sizes: tuple[int, int, int], capability: tuple[int, int] | None) -> str:
    """Why XLA computes this product where `always` is not asked for, or "".

    Ours are taken where they are within 4% of XLA's: full float32 on an H200, from 4096 in each size.
    Smaller ones leave multiprocessors idle that XLA's use; 16-bit and tf32 products of XLA use wgmma there;
    and no other device is measured.
    """
    if capability is None:
        return "the device is not known while the program is lowered"
    if capability != (9, 0):
        return f"compute capability {capability[0]}.{capability[1]} is not measured"
    if kernel != "highest":
        return "XLA's kernels use wgmma, ours mma.sync, which issues less"
    if min(sizes) < 4096:
        return "XLA's kernels are faster below 4096 in M, N or K"
    return ""


def _why_not(ctx: mlir.LoweringRuleContext, mode: str | None, dot: dict[str, Any]) -> str:
    if mode is None:
        return "not installed in this thread"
    if len(platforms_of(ctx)) > 1:
        return "the program is for several platforms"
    avals: list[Any] = [*ctx.avals_in, *ctx.avals_out]
    a, b, out = avals
    try:
        kernel = dot_general_precision(a, b, out, dot["precision"])
    except NoKernel as unsupported:
        return str(unsupported)
    capability = _capability(ctx)
    if capability is not None and capability < (8, 0):
        return f"no kernel runs on compute capability {capability[0]}.{capability[1]}"
    sizes = matrix_sizes(dot["dimension_numbers"], a.shape, b.shape)
    if reason := why_not_a_gemm(sizes):
        return reason
    if mode != "always" and (reason := why_not_worthwhile(kernel, sizes, capability)):
        return reason
    return why_not_cuda(ctx)


def _capability(ctx: mlir.LoweringRuleContext) -> tuple[int, int] | None:
    """Of the devices that are compiled for; None where lowering is not told, or they differ."""
    # NOTE: not the device assignment: JAX lowers once for all devices of a backend.
    backend: Any = ctx.module_context.backend
    found = {
        str(getattr(device, "compute_capability", "")) for device in (backend.devices() if backend else ())
    }
    major, _, minor = found.pop().partition(".") if len(found) == 1 else ("", "", "")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


# ---- the rules ----

# None, "measured" or "always": in the key of every cache of JAX, and in each thread its own.
_mode: Any = jax.make_user_context(None)


def _jax_primitive(replaced: Primitive) -> Primitive:
    """A primitive of JAX under another name, for the lowerings that were there before ours."""
    primitive = Primitive(replaced.name)
    primitive.def_abstract_eval(lambda *avals, **params: replaced.abstract_eval(*avals, **params)[0])
    return primitive


_jax_primitives = {replaced: _jax_primitive(replaced) for replaced in (dot_general_p, transpose_p)}


def _lower_with_jax(primitive: Primitive, ctx: mlir.LoweringRuleContext, *args: Any, **params: Any) -> Any:
    if len(platforms_of(ctx)) > 1:
        return mlir.lower_fun(_jax_primitives[primitive].bind, multiple_results=False)(ctx, *args, **params)
    (platform,) = platforms_of(ctx)
    default, by_platform = _tables()
    entry = by_platform[platform].get(_jax_primitives[primitive]) or default[_jax_primitives[primitive]]
    return entry.rule(ctx, *args, **params)


def _lower_dot_general(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **dot: Any) -> Any:
    if _why_not(ctx, _mode.value, dot):
        return _lower_with_jax(dot_general_p, ctx, a, b, **dot)
    (out_aval,) = ctx.avals_out
    identity = tuple(range(out_aval.ndim))
    # NOTE: gradients name the sharding of their result, also where nothing is sharded.
    ours: dict[str, Any] = {"out_sharding": None, "out_permutation": identity, "operand_type": None}
    ours |= {"config": "", "backend": None}
    avals: list[Any] = [*ctx.avals_in]
    if (operand_type := operands_as(avals[0], avals[1], dot["precision"])) is None:
        (out,) = lower_to_cuda(ctx, a, b, **dot | ours)
    else:
        (out,) = lower_rounded(ctx, a, b, **dot | ours | {"operand_type": operand_type})
    return [_transposed(out, identity)]


def _lower_transpose(ctx: mlir.LoweringRuleContext, x: Any, *, permutation: tuple[int, ...]) -> Any:
    """As JAX does, but of one of our products a product in that order: JAX's gradients transpose results."""
    if (product := _in_order(x, permutation)) is not None:
        return [product]
    return _lower_with_jax(transpose_p, ctx, x, permutation=permutation)


def _in_order(x: Any, permutation: tuple[int, ...]) -> Any:
    """Has the call behind `x` write its result in this order, and `x` transpose that back.

    None if `x` is no result of `_lower_dot_general`, is read already, or kernels cannot write in this order.
    """
    identity = _operation(x, "stablehlo.transpose")  # what we return: an operand that can be exchanged
    if identity is None or list(identity.attributes["permutation"]) != list(range(len(permutation))):
        return None
    call = _operation(identity.operands[0], "stablehlo.custom_call")
    if call is None or call.attributes["call_target_name"].value != _ffi.TARGET:
        return None
    if any(True for _ in x.uses) or sum(1 for _ in call.results[0].uses) > 1:
        return None
    attributes = {named.name: named.attr for named in _named(call.attributes)}
    key = "mhlo.backend_config" if "mhlo.backend_config" in attributes else "backend_config"
    config = {named.name: named.attr for named in _named(attributes[key])}
    operands, _, out_labels = config["contraction"].value.partition("->")
    contraction = f"{operands}->{''.join(out_labels[axis] for axis in permutation)}"
    shapes = [mlir.ir.RankedTensorType(operand.type).shape for operand in call.operands]
    if _ffi.core().expressible(contraction, *shapes):
        return None
    config["contraction"] = mlir.ir.StringAttr.get(contraction)
    with mlir.ir.InsertionPoint(call):
        product = mlir.ir.Operation.create(
            call.name,
            results=[_permuted_type(x.type, permutation)],
            operands=list(call.operands),
            attributes={**attributes, key: mlir.ir.DictAttr.get(config)},
            loc=call.location,
        ).results[0]
        inverse = tuple(permutation.index(axis) for axis in range(len(permutation)))
        identity.operands[0] = _transposed(product, inverse)
    call.erase()
    return product


def _operation(value: Any, name: str) -> Any:
    """The operation that `value` is a result of, if it is one of this name."""
    operation = getattr(value.owner, "operation", None)  # None: an argument of a block
    return operation if operation is not None and operation.name == name else None


def _named(attributes: Any) -> list[Any]:
    return [attributes[i] for i in range(len(attributes))]  # what iteration gives depends on the version


def _permuted_type(x: Any, permutation: tuple[int, ...]) -> Any:
    x = mlir.ir.RankedTensorType(x)
    return mlir.ir.RankedTensorType.get([x.shape[axis] for axis in permutation], x.element_type)


def _transposed(x: Any, permutation: tuple[int, ...]) -> Any:
    return mlir.ir.Operation.create(
        "stablehlo.transpose",
        results=[_permuted_type(x.type, permutation)],
        operands=[x],
        attributes={"permutation": mlir.ir.DenseI64ArrayAttr.get(permutation)},
    ).results[0]


# ---- registration ----

_lock = threading.RLock()
_globally = False  # install() has been called
_holders = 0  # install(), and each context that is open in any thread


def _tables() -> tuple[dict[Any, Any], dict[str, dict[Any, Any]]]:
    """JAX's lowering rules by primitive: for any platform, and by platform."""
    return mlir._lowerings, mlir._platform_specific_lowerings


def _uncacheable() -> set[Primitive]:
    # NOTE: register_lowering can add to this set, and nothing public can remove from it.
    return mlir.register_lowering.__globals__["_uncacheable_primitives"]


def _set_everywhere(mode: str | None) -> None:
    _mode._obj.set_global(mode)  # a public method only since JAX 0.10


def _hold() -> None:
    global _holders
    with _lock:
        if not _holders:
            _replace_rules()
        _holders += 1


def _release() -> None:
    global _holders
    with _lock:
        _holders -= 1
        if not _holders:
            _restore_rules()


def _replace_rules() -> None:
    try:
        default, by_platform = _tables()
        _uncacheable()
        _mode._obj.set_global  # noqa: B018
    except (AttributeError, KeyError) as error:
        raise RuntimeError(
            f"jax_gemm.install: JAX {jax.__version__} keeps its lowering rules elsewhere ({error}); call "
            "jax_gemm.matmul instead, or use a JAX from 0.8 to 0.12"
        ) from error
    for primitive, jax_primitive in _jax_primitives.items():
        for table in (default, *by_platform.values()):
            if primitive in table:
                table[jax_primitive] = table[primitive]
    # In this order: whoever lowers meanwhile finds one rule or the other. One rule for all platforms and
    # not cacheable, for the reasons given in _primitive.py.
    mlir.register_lowering(dot_general_p, _lower_dot_general, cacheable=False)
    mlir.register_lowering(transpose_p, _lower_transpose, cacheable=False)
    for table in by_platform.values():
        for primitive in _jax_primitives:
            table.pop(primitive, None)
    _private.requires_devices(dot_general_p)  # to partition it; JAX's own lowering does not mind


def _restore_rules() -> None:
    default, by_platform = _tables()
    for primitive, jax_primitive in _jax_primitives.items():
        for table in (*by_platform.values(), default):
            if jax_primitive in table:
                table[primitive] = table[jax_primitive]
        _uncacheable().discard(primitive)


# ---- public ----


def install(*, always: bool = False) -> None:
    """Makes `lax.dot_general` use our kernels on CUDA, in every thread: `jnp.dot`, `@`, `jnp.einsum`, models.

    What is jitted already is compiled anew at its next call; what `.lower()` or `.compile()` has returned
    stays as it is. Calling it again only sets `always`.

    Left to XLA, as before: types that `matmul` leaves to XLA, operands of different types, platforms other
    than CUDA, meshes that are manual in part, symbolic sizes, exports for several platforms at once, and
    products that XLA computes in one kernel with their neighbours: of one row or column, and tiny ones.
    `report` lists the products of a function, each with its reason.
    `matmul(backend="xla")` is `jnp.matmul`, and becomes ours like any other.

    Args:
      always: False to take only products for which our kernels are on a level with XLA's: today full float32
        (`precision=HIGHEST`) on GPUs of compute capability 9.0, from 4096 in each of M, N and K, if the
        device is known while the program is lowered. True for every product that a kernel computes.

    Raises:
      RuntimeError: this version of JAX keeps its lowering rules elsewhere.

    Example:
      >>> import jax_gemm
      >>> jax_gemm.install()
      >>> jax_gemm.uninstall()
    """
    global _globally
    with _lock:
        if not _globally:
            _hold()
            _globally = True
        _set_everywhere(_mode_name(always))


def uninstall() -> None:
    """Undoes `install`; a context of `installed` that is open stays in force. Harmless if not installed."""
    global _globally
    with _lock:
        if _globally:
            _set_everywhere(None)
            _globally = False
            _release()


@contextlib.contextmanager
def installed(*, always: bool = False) -> Iterator[None]:
    """`install` for the enclosed calls of this thread; the innermost context is in force.

    Args:
      always: as for `install`.

    Raises:
      RuntimeError: as for `install`.

    Example:
      >>> import jax.numpy as jnp, jax_gemm
      >>> with jax_gemm.installed():
      ...     c = jnp.ones((8, 8)) @ jnp.ones((8, 8))
    """
    _hold()
    try:
        with _mode(_mode_name(always)):
            yield
    finally:
        _release()


def _mode_name(always: bool) -> str:
    return "always" if always else "measured"
