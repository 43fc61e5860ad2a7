"""How JAX transforms a product: differentiation of any order and mode, and batching.

A product is written as labels, one letter an axis, as in einsum. That makes both short: the gradient of `a`
in `a,b->out` is `out,b->a`, and a batched operand has one letter more. Either is one call of the primitive.
"""

from __future__ import annotations

import string
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad, batching
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jax_gemm._labels import Labels, dot_parameters, labels_of
from jax_gemm._partition import full_spec
from jax_gemm._primitive import KERNEL_TYPES, OPERAND_TYPES, gemm_p

# ---- differentiation: the product is linear in each operand ----


def _transpose_a(
    cotangent: jax.Array,
    a: Any,
    b: jax.Array,
    *,
    dimension_numbers: Any,
    out_permutation: tuple[int, ...],
    **params: Any,
) -> jax.Array:
    labels = labels_of(dimension_numbers, a.aval.ndim, b.ndim, out_permutation)
    product_type = _gradient_type(cotangent, b, **params)
    return _gradient(cotangent, b, Labels(labels.out, labels.b, labels.a), a.aval, product_type, **params)


def _transpose_b(
    cotangent: jax.Array,
    a: jax.Array,
    b: Any,
    *,
    dimension_numbers: Any,
    out_permutation: tuple[int, ...],
    **params: Any,
) -> jax.Array:
    labels = labels_of(dimension_numbers, a.ndim, b.aval.ndim, out_permutation)
    product_type = _gradient_type(cotangent, a, **params)
    return _gradient(a, cotangent, Labels(labels.a, labels.out, labels.b), b.aval, product_type, **params)


def _gradient_type(
    cotangent: jax.Array, operand: jax.Array, *, precision: Any, operand_type: np.dtype | None, **_: Any
) -> np.dtype:
    """The type in which a cotangent and an operand are multiplied."""
    if precision in OPERAND_TYPES:
        return jnp.dtype(OPERAND_TYPES[precision])
    # Of a float32 cotangent and a 16-bit operand float32: to round the cotangent would lose what the wider
    # result was asked for.
    return jnp.promote_types(cotangent.dtype, operand_type or operand.dtype)


def _gradient(
    a: jax.Array,
    b: jax.Array,
    labels: Labels,
    result: Any,
    product_type: np.dtype,
    *,
    precision: Any,
    backend: str | None,
    **_: Any,
) -> jax.Array:
    """The product `labels` in `product_type`, of the shape, type and sharding of `result`."""
    direct = result.dtype.name in KERNEL_TYPES.get(product_type.name, ())
    dimension_numbers, out_permutation, product = dot_parameters(labels)
    out = gemm_p.bind(
        a,
        b,
        dimension_numbers=dimension_numbers,
        out_permutation=out_permutation,
        precision=precision,
        preferred_element_type=np.dtype(result.dtype if direct else product_type),
        out_sharding=_sharding_of_product(result, labels.out, product),
        operand_type=None if a.dtype == b.dtype == product_type else product_type,
        config="",
        backend=backend,
    )
    return lax.convert_element_type(out, result.dtype)


def _sharding_of_product(result: Any, out_labels: str, product: str) -> NamedSharding | None:
    """The sharding of dot_general's own result that becomes, permuted, that of `result`."""
    sharding = result.sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    spec = dict(zip(out_labels, full_spec(sharding.spec, len(out_labels)), strict=True))
    return NamedSharding(sharding.mesh, PartitionSpec(*(spec[label] for label in product)))


ad.defbilinear(gemm_p, _transpose_a, _transpose_b)

# ---- batching ----


def _batch(
    axis_data: Any,
    operands: tuple[jax.Array, jax.Array],
    axes: tuple[int | None, int | None],
    *,
    dimension_numbers: Any,
    out_permutation: tuple[int, ...],
    out_sharding: NamedSharding | None,
    **params: Any,
) -> tuple[jax.Array, int | None]:
    """One product; an axis that only one operand has is one more of its kept axes."""
    a, b = operands
    a_axis, b_axis = axes
    if a_axis is None and b_axis is None:  # mapped over axes of other operations only
        same = {"dimension_numbers": dimension_numbers, "out_permutation": out_permutation}
        return gemm_p.bind(a, b, out_sharding=out_sharding, **same, **params), None
    labels = labels_of(
        dimension_numbers, a.ndim - (a_axis is not None), b.ndim - (b_axis is not None), out_permutation
    )
    new = next(letter for letter in string.ascii_letters if letter not in labels.a + labels.b)
    a_labels = labels.a if a_axis is None else labels.a[:a_axis] + new + labels.a[a_axis:]
    b_labels = labels.b if b_axis is None else labels.b[:b_axis] + new + labels.b[b_axis:]
    # Where the axis follows a kept one in memory, it does so in the result: the two stay one M or N.
    place = 0
    if b_axis is None and a_axis and labels.a[a_axis - 1] in labels.out:
        place = labels.out.index(labels.a[a_axis - 1]) + 1
    elif a_axis is None and b_axis and labels.b[b_axis - 1] in labels.out:
        place = labels.out.index(labels.b[b_axis - 1]) + 1
    batched = Labels(a_labels, b_labels, labels.out[:place] + new + labels.out[place:])
    dimension_numbers, out_permutation, product = dot_parameters(batched)
    if out_sharding is not None:
        _, _, inner = dot_parameters(labels)
        spec = dict(zip(inner, full_spec(out_sharding.spec, len(inner)), strict=True))
        spec[new] = getattr(axis_data, "explicit_mesh_axis", None)
        out_sharding = NamedSharding(out_sharding.mesh, PartitionSpec(*(spec[label] for label in product)))
    out = gemm_p.bind(
        a,
        b,
        dimension_numbers=dimension_numbers,
        out_permutation=out_permutation,
        out_sharding=out_sharding,
        **params,
    )
    return out, place


# The rule that sees axis_data is the one that spmd_axis_name needs.
batching.fancy_primitive_batchers[gemm_p] = _batch
