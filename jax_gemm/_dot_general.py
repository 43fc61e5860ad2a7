"""`jax.lax.dot_general` and the functions of `jax.numpy` that are thin forms of it, on our kernels.

A product that no kernel computes, and an argument that is wrong, goes to JAX's own function.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_gemm._arguments import PrecisionLike, Sharding, bind, canonical_precision
from jax_gemm._labels import DimensionNumbers
from jax_gemm._primitive import NoKernel, kernel_precision


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]],
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Sharding = None,
) -> jax.Array:
    """The contraction of two arrays over any axes, as `jax.lax.dot_general` defines it.

    It stands wherever JAX's function does: as `dot_general` of a Flax layer, as `_dot_general` of
    `jax.numpy.einsum`. Axes in any order are read in place where strides can express the product.

    Types. Kernels take what they take in `jax_gemm.matmul`, of operands that have one type. Operands of
    different types, all other types, and products that sum over no axis are computed by XLA.

    Args:
      lhs: array of any shape.
      rhs: array of any shape.
      dimension_numbers: `((lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch))`, sequences of axes.
        Paired axes have one size.
      precision: as in `jax_gemm.matmul`.
      preferred_element_type: type of the result, and of the sum.
      out_sharding: sharding of the result on a mesh with explicit axes; None for what the operands imply.

    Returns:
      The product: axes of the batch, then the other axes of `lhs`, then those of `rhs`.

    Raises:
      TypeError: axes do not exist, repeat or differ in number or size, or types do not go together.
      ValueError: `precision` or `out_sharding` is not known.

    Example:
      >>> import jax, jax.numpy as jnp, jax_gemm
      >>> query = jnp.ones((2, 128, 8, 64), jnp.bfloat16)
      >>> key = jnp.ones((2, 256, 8, 64), jnp.bfloat16)
      >>> jax_gemm.dot_general(query, key, (((3,), (3,)), ((0, 2), (0, 2)))).shape
      (2, 8, 128, 256)
    """
    if dimension_numbers is not None and _kernels_take(lhs, rhs, precision, preferred_element_type):
        (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = dimension_numbers
        contracted = _axes(lhs_contracted), _axes(rhs_contracted)
        # Without a sum there is nothing for tensor cores, and XLA fuses the multiplication.
        if contracted != ((), ()):
            return bind(
                jnp.asarray(lhs),
                jnp.asarray(rhs),
                dimension_numbers=(contracted, (_axes(lhs_batch), _axes(rhs_batch))),
                precision=canonical_precision(precision),
                preferred_element_type=_type(preferred_element_type),
                out_sharding=out_sharding,
            )
    return lax.dot_general(
        lhs, rhs, dimension_numbers, precision, preferred_element_type, out_sharding=out_sharding
    )


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    out: None = None,
    optimize: str | bool | list[tuple[int, ...]] = "auto",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Sharding = None,
) -> jax.Array:
    """Einstein's summation, as `jax.numpy.einsum` defines it, with its products by `jax_gemm.dot_general`.

    Args:
      subscripts: labels of each operand's axes, as in `"bhqd,bhkd->bhqk"`; or the first operand, in NumPy's
        form of operands in turn with lists of labels.
      *operands: arrays.
      out: not supported, None.
      optimize: how the order of products is found, as in `jax.numpy.einsum`.
      precision: as in `jax_gemm.matmul`, for each product.
      preferred_element_type: type of the result, and of each sum.
      out_sharding: sharding of the result on a mesh with explicit axes; None for what the operands imply.

    Returns:
      The array that the subscripts describe.

    Raises:
      ValueError: subscripts do not describe the operands, or `precision` or `out_sharding` is not known.
      TypeError: an operand is not an array, or types do not go together.
      NotImplementedError: `out` is given, or a step of `optimize` contracts more than two operands.

    Example:
      >>> import jax.numpy as jnp, jax_gemm
      >>> query, key = jnp.ones((2, 8, 128, 64)), jnp.ones((2, 8, 256, 64))
      >>> jax_gemm.einsum("bhqd,bhkd->bhqk", query, key).shape
      (2, 8, 128, 256)
    """
    form = _einsum_form(subscripts, operands) if out is None and out_sharding is None else None
    if form and _kernels_take(*form.operands, precision, preferred_element_type):
        product = bind(
            *map(jnp.asarray, form.operands),
            dimension_numbers=form.dimension_numbers,
            precision=canonical_precision(precision),
            preferred_element_type=_type(preferred_element_type),
            out_permutation=form.out_permutation,
        )
        return _as_preferred(product, preferred_element_type)
    return jnp.einsum(
        subscripts,
        *operands,
        out=out,
        optimize=optimize,
        precision=precision,
        preferred_element_type=preferred_element_type,
        _dot_general=dot_general,
        out_sharding=out_sharding,
    )


def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: int | Sequence[int] | Sequence[Sequence[int]] = 2,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Sharding = None,
) -> jax.Array:
    """The contraction of two arrays without batch axes, as `jax.numpy.tensordot` defines it.

    Args:
      a: array of any shape.
      b: array of any shape.
      axes: how many of the last axes of `a` meet the first of `b`, in order; or a pair of axes, or of lists
        of axes. Negative ones count from the end.
      precision: as in `jax_gemm.matmul`.
      preferred_element_type: type of the result, and of the sum.
      out_sharding: sharding of the result on a mesh with explicit axes; None for what the operands imply.

    Returns:
      The product: the other axes of `a`, then those of `b`. Its type as in `jax_gemm.dot_general`.

    Raises:
      TypeError: `axes` is neither form, names axes in different numbers or of different sizes, or types do
        not go together.
      ValueError: an axis does not exist, or `precision` or `out_sharding` is not known.

    Example:
      >>> import jax.numpy as jnp, jax_gemm
      >>> jax_gemm.tensordot(jnp.ones((2, 3, 4)), jnp.ones((4, 3, 5)), ([1, 2], [1, 0])).shape
      (2, 5)
    """
    if _kernels_take(a, b, precision, preferred_element_type):
        contracted = _tensordot_axes(axes, np.ndim(a), np.ndim(b))
        if contracted:
            return _contraction(a, b, contracted, precision, preferred_element_type, out_sharding)
    return jnp.tensordot(
        a,
        b,
        axes,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


def dot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Sharding = None,
) -> jax.Array:
    """The sum over the last axis of `a` and the second to last of `b`, as `jax.numpy.dot` defines it.

    Args:
      a: array of shape `(..., K)`, or a scalar.
      b: array of shape `(K,)` or `(..., K, N)`, or a scalar. A scalar multiplies the other operand.
      precision: as in `jax_gemm.matmul`.
      preferred_element_type: type of the result, and of the sum.
      out_sharding: sharding of the result on a mesh with explicit axes; None for what the operands imply.

    Returns:
      The product: the other axes of `a`, then those of `b`. Its type as in `jax_gemm.dot_general`.

    Raises:
      TypeError: the sizes `K` differ, an operand is not an array, or types do not go together.
      ValueError: `precision` or `out_sharding` is not known.

    Example:
      >>> import jax.numpy as jnp, jax_gemm
      >>> jax_gemm.dot(jnp.ones((2, 3, 4)), jnp.ones((5, 4, 6))).shape
      (2, 3, 5, 6)
    """
    if _kernels_take(a, b, precision, preferred_element_type) and np.ndim(a) and np.ndim(b):
        contracted = (np.ndim(a) - 1,), (max(np.ndim(b) - 2, 0),)
        return _contraction(a, b, contracted, precision, preferred_element_type, out_sharding)
    return jnp.dot(
        a,
        b,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> jax.Array:
    """The sum of all products of an element of `a`, conjugated, and its like in `b`, as in `jax.numpy.vdot`.

    Args:
      a: array of any shape, read as a vector.
      b: array of any shape of the same size.
      precision: as in `jax_gemm.matmul`.
      preferred_element_type: type of the result, and of the sum.

    Returns:
      An array of shape `()`. Its type as in `jax_gemm.dot_general`.

    Raises:
      TypeError: sizes differ, an operand is not an array, or types do not go together.
      ValueError: `precision` is not known.

    Example:
      >>> import jax.numpy as jnp, jax_gemm
      >>> float(jax_gemm.vdot(jnp.ones((2, 3)), jnp.ones((3, 2))))
      6.0
    """
    if _kernels_take(a, b, precision, preferred_element_type):
        vectors = jnp.ravel(a), jnp.ravel(b)
        return _contraction(*vectors, ((0,), (0,)), precision, preferred_element_type, None)
    return jnp.vdot(a, b, precision=precision, preferred_element_type=preferred_element_type)


def _kernels_take(
    a: ArrayLike, b: ArrayLike, precision: PrecisionLike, preferred_element_type: DTypeLike | None
) -> bool:
    """Whether a kernel multiplies these types at this precision. Scalars of Python are never taken."""
    if not all(isinstance(x, jax.Array | np.ndarray) for x in (a, b)):
        return False
    if isinstance(preferred_element_type, jax.Array):  # NumPy would take its type, where JAX raises
        return False
    a_type, b_type = jax.typeof(a).dtype, jax.typeof(b).dtype  # JAX's types of NumPy's arrays
    result_type = a_type if preferred_element_type is None else np.dtype(preferred_element_type)
    try:
        kernel_precision(a_type, result_type, canonical_precision(precision))
    except NoKernel:
        return False
    return a_type == b_type


def _axes(axes: Any) -> tuple[int, ...]:
    """Axes as `lax.dot_general` reads them: one is as good as a sequence of one."""
    try:
        return (operator.index(axes),)
    except TypeError:
        return tuple(map(operator.index, axes))


def _tensordot_axes(axes: Any, a_ndim: int, b_ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The contracted axes of a and of b; None for what `jnp.tensordot` has to reject."""
    if type(axes) is int and axes <= min(a_ndim, b_ndim):
        return tuple(range(a_ndim - axes, a_ndim)), tuple(range(axes))
    match axes:
        case (int() as a_axis, int() as b_axis):
            a_axes, b_axes = [a_axis], [b_axis]
        case (list() | tuple() as a_axes, list() | tuple() as b_axes) if len(a_axes) == len(b_axes):
            pass
        case _:
            return None
    if all(-a_ndim <= axis < a_ndim for axis in a_axes) and all(-b_ndim <= axis < b_ndim for axis in b_axes):
        return tuple(axis % a_ndim for axis in a_axes), tuple(axis % b_ndim for axis in b_axes)
    return None


class _Form(NamedTuple):
    operands: tuple[Any, Any]
    dimension_numbers: DimensionNumbers
    out_permutation: tuple[int, ...]


def _einsum_form(subscripts: Any, operands: tuple[Any, ...]) -> _Form | None:
    """One product that writes the result's axes in their order; None where there is more to be done.

    `jnp.einsum` transposes what `dot_general` returns, by a kernel after ours: in attention, for one, where
    weights meet values.
    """
    shapes = [np.shape(x) for x in operands if isinstance(x, jax.Array | np.ndarray)]
    if not isinstance(subscripts, str) or len(operands) != 2 or len(shapes) != 2:
        return None
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        return None
    info: Any = jnp.einsum_path(subscripts, *operands)[1]
    (a, b), out = info.input_subscripts.split(","), info.output_subscript
    sizes, b_sizes = dict(zip(a, shapes[0], strict=True)), dict(zip(b, shapes[1], strict=True))
    shared = sizes.keys() & b_sizes.keys()
    if (
        any(len(set(labels)) < len(labels) for labels in (a, b))  # a diagonal
        or not sizes.keys() ^ b_sizes.keys() <= set(out)  # a sum of one operand alone
        or any(sizes[label] != b_sizes[label] for label in shared)  # a broadcast
        or not shared - set(out)  # no sum
        or out[-1:] in shared  # the batch is contiguous: neither M nor N is
    ):
        return None
    if out and out[-1] in a:  # N is the contiguous axis of a product
        a, b, operands = b, a, operands[::-1]
    contracted = [label for label in a if label in shared and label not in out]
    batch = [label for label in out if label in shared]
    product = batch + [label for label in a + b if label not in shared]

    def axes(operand: str, labels: list[str]) -> tuple[int, ...]:
        return tuple(map(operand.index, labels))

    return _Form(
        (operands[0], operands[1]),
        ((axes(a, contracted), axes(b, contracted)), (axes(a, batch), axes(b, batch))),
        tuple(map(product.index, out)),
    )


def _contraction(
    a: ArrayLike,
    b: ArrayLike,
    contracted: tuple[tuple[int, ...], tuple[int, ...]],
    precision: PrecisionLike,
    preferred_element_type: DTypeLike | None,
    out_sharding: Sharding,
) -> jax.Array:
    """`dot_general` without batch axes, with weak types by the rules of `jax.numpy`."""
    product = dot_general(
        a, b, (contracted, ((), ())), precision, preferred_element_type, out_sharding=out_sharding
    )
    return _as_preferred(product, preferred_element_type)


def _type(preferred_element_type: DTypeLike | None) -> np.dtype | None:
    return None if preferred_element_type is None else np.dtype(preferred_element_type)


def _as_preferred(product: jax.Array, preferred_element_type: DTypeLike | None) -> jax.Array:
    """In `jax.numpy`, a type that was asked for is never weak."""
    return (
        product
        if preferred_element_type is None
        else lax.convert_element_type(product, preferred_element_type)
    )
