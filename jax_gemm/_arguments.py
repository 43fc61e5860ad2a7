"""From the arguments of the public functions to the primitive's parameters."""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import numpy as np
from jax import lax
from jax.extend.core.primitives import dot_general_p
from jax.sharding import NamedSharding, PartitionSpec

from jax_gemm._labels import DimensionNumbers
from jax_gemm._primitive import Precision, gemm_p

PrecisionLike = (
    None
    | str
    | lax.Precision
    | tuple[str, str]
    | tuple[lax.Precision, lax.Precision]
    | lax.DotAlgorithm
    | lax.DotAlgorithmPreset
)
Sharding = NamedSharding | PartitionSpec | None


def canonical_precision(precision: PrecisionLike) -> Precision:
    """A pair, an algorithm or None, as `lax.dot_general` understands `precision`."""
    if precision is None:
        precision = jax.config.jax_default_matmul_precision
    match precision:
        case None | lax.DotAlgorithm() | lax.DotAlgorithmPreset():
            return precision
        case lax.Precision():
            return precision, precision
        case (lax.Precision() as first, lax.Precision() as second):
            return first, second
        case (str() as first, str() as second):
            try:
                return lax.Precision(first), lax.Precision(second)
            except ValueError:
                pass
        case str():
            if precision in lax.DotAlgorithmPreset.__members__:
                return lax.DotAlgorithmPreset[precision]
            try:
                return lax.Precision(precision), lax.Precision(precision)
            except ValueError:
                pass
    raise ValueError(
        f"jax_gemm: precision {precision!r} is not known; it is None, a jax.lax.Precision or its name "
        "('default', 'high', 'highest', 'tensorfloat32', 'float32', ...), a pair of these, a "
        "jax.lax.DotAlgorithmPreset or its name, or a jax.lax.DotAlgorithm"
    )


def bind(
    a: jax.Array,
    b: jax.Array,
    *,
    dimension_numbers: DimensionNumbers,
    precision: Precision,
    preferred_element_type: Any,
    out_sharding: Sharding = None,
    out_permutation: tuple[int, ...] | None = None,
    operand_type: np.dtype | None = None,
    config: str = "",
    backend: Literal["cuda"] | None = None,
) -> jax.Array:
    """The primitive's product, of operands and to a sharding as `lax.dot_general` prepares them."""
    if out_permutation is None:
        (contracted, _), (batch, _) = dimension_numbers
        out_permutation = tuple(range(a.ndim + b.ndim - 2 * len(contracted) - len(batch)))
    ours: dict[str, Any] = {
        "out_permutation": out_permutation,
        "operand_type": operand_type,
        "config": config,
        "backend": backend,
    }
    dot: dict[str, Any] = {
        "dimension_numbers": dimension_numbers,
        "precision": precision,
        "preferred_element_type": preferred_element_type,
        "out_sharding": out_sharding,
    }
    if out_sharding is None and jax.sharding.get_abstract_mesh().empty:
        return gemm_p.bind(a, b, **dot, **ours)
    # On a mesh, lax resolves out_sharding and casts operands that vary over different manual axes. JAX has no
    # public function for either, so what lax does is traced and done with our primitive in place of its own.
    jaxpr = jax.make_jaxpr(functools.partial(lax.dot_general, **dot))(a, b).jaxpr
    values: dict[Any, Any] = dict(zip(jaxpr.invars, (a, b), strict=True))
    for eqn in jaxpr.eqns:
        operands = [values[variable] for variable in eqn.invars]
        if eqn.primitive is dot_general_p:
            results = [gemm_p.bind(*operands, **eqn.params, **ours)]
        else:
            results = eqn.primitive.bind(*operands, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        values.update(zip(eqn.outvars, results, strict=True))
    return values[jaxpr.outvars[0]]
