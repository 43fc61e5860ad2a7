"""Policies for `jax.checkpoint` that know our products: in place of those of the same names in JAX.

JAX's `dots_saveable` and its kin name `dot_general` alone, so that products of ours would be computed again
in the backward pass. Under `jax_gemm.install()` products stay `dot_general`, and JAX's
own policies are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.extend.core.primitives import dot_general_p

from jax_gemm._primitive import gemm_p

Policy = Callable[..., Any]


def dots_saveable(primitive: Primitive, *avals: Any, **params: Any) -> Any:
    """Saves the results of all products, of ours and of JAX's."""
    return primitive is gemm_p or jax.checkpoint_policies.dots_saveable(primitive, *avals, **params)


def dots_with_no_batch_dims_saveable(primitive: Primitive, *avals: Any, **params: Any) -> Any:
    """Saves the results of products without batch dimensions: of weights, not of attention."""
    if primitive is gemm_p:
        return _has_no_batch_dims(params)
    return jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *avals, **params)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Moves the results of products without batch dimensions to another memory.

    Args:
      offload_src: memory kind of the results, "device".
      offload_dst: where they wait for the backward pass, e.g. "pinned_host".
    """
    theirs = jax.checkpoint_policies.offload_dot_with_no_batch_dims(offload_src, offload_dst)

    def policy(primitive: Primitive, *avals: Any, **params: Any) -> Any:
        if primitive is gemm_p and _has_no_batch_dims(params):
            # What JAX's policy says of such a dot_general.
            return theirs(dot_general_p, dimension_numbers=(((), ()), ((), ())))
        return theirs(primitive, *avals, **params)

    return policy


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def _has_no_batch_dims(params: Any) -> bool:
    _, (a_batch, b_batch) = params["dimension_numbers"]
    return not a_batch and not b_batch
