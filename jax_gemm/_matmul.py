"""`matmul`: NumPy's rules for it, and the only place where its arguments are validated."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike, DTypeLike

from jax_gemm import _ffi
from jax_gemm._arguments import PrecisionLike, bind, canonical_precision
from jax_gemm._labels import DimensionNumbers
from jax_gemm._primitive import KERNEL_TYPES_TEXT, NoKernel, kernel_precision


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    grad_preferred_element_type: DTypeLike | None = None,
    backend: Literal["cuda", "xla"] | None = None,
    config: str | None = None,
    name: str | None = None,
) -> jax.Array:
    """The matrix product of two arrays, under NumPy's rules for `matmul`.

    On NVIDIA GPUs our kernels compute it, elsewhere XLA does. Operands may be transposed or broadcast: under
    `jax.jit` neither is materialised. 16-bit and tf32 products are summed in float32 and rounded once.

    Types. Kernels take both operands bfloat16 (result bfloat16 or float32), float16 (result float16 or
    float32), or float32 (result float32). Operands of different types are promoted as JAX does. All other
    types are computed by XLA on every backend.

    Args:
      a: array of shape `(K,)` or `(..., M, K)`.
      b: array of shape `(K,)` or `(..., K, N)`; leading dimensions broadcast against those of `a`.
      precision: as in `jax.numpy.matmul`. For float32 on a GPU, DEFAULT and HIGH are tf32, HIGHEST is full
        float32. None is `jax.default_matmul_precision`. An algorithm without a kernel is left to XLA.
      preferred_element_type: type of the result, and of the sum.
      grad_preferred_element_type: type of the gradients of operands that have it, where the other operand's
        is narrower: they are rounded to the narrower type to be multiplied, and their gradients are not. So
        float32 weights meet bfloat16 activations in a bfloat16 product, and its gradient is float32. (JAX
        ties a gradient's type to its operand's: that of bfloat16 weights is bfloat16.)
      backend: None for the best available, "cuda" to fail wherever our kernels cannot be used, "xla" for
        XLA's product.
      config: name of the kernel configuration to use on a GPU, as `jax_gemm.explain` lists them. None for
        the library's choice.
      name: what the result is called in policies of `jax.checkpoint` such as `save_only_these_names`.

    Returns:
      The product, of shape `(..., M, N)`, without `M` or `N` where the operand is one-dimensional.

    Raises:
      ValueError: shapes do not match, an operand is a scalar, or an option is not known.
      TypeError: an operand is not an array, types cannot be promoted, `backend="cuda"` has no kernel for
        them, or they do not go with `grad_preferred_element_type`.
      RuntimeError: `backend="cuda"` and there is no CUDA device, or kernels cannot be used.

    Example:
      >>> import jax, jax.numpy as jnp, jax_gemm
      >>> x = jnp.ones((8, 128, 256), jnp.bfloat16)
      >>> w = jnp.ones((512, 256), jnp.bfloat16)
      >>> jax.jit(lambda x, w: jax_gemm.matmul(x, w.T))(x, w).shape
      (8, 128, 512)
    """
    a, b = _as_array(a, "a"), _as_array(b, "b")
    form = _form(a, b)
    if backend not in (None, "cuda", "xla"):
        raise ValueError(f"jax_gemm.matmul: backend is None, 'cuda' or 'xla', not {backend!r}")
    canonical = canonical_precision(precision)
    operand_type = _promoted(a, b)
    if grad_preferred_element_type is not None:
        operand_type = _narrower(a, b, np.dtype(grad_preferred_element_type))
        if backend == "xla":
            raise ValueError("jax_gemm.matmul: backend='xla' has no grad_preferred_element_type")
    result_type = operand_type if preferred_element_type is None else np.dtype(preferred_element_type)

    try:
        if a.dtype != b.dtype and preferred_element_type is not None and grad_preferred_element_type is None:
            raise NoKernel("operands of different types with a preferred_element_type are left to XLA")
        if _weakly_promoted(a, b, operand_type):
            raise NoKernel("the result's type is weak")
        math = _math(operand_type, kernel_precision(operand_type, result_type, canonical))
    except NoKernel as reason:
        demanded = {
            "backend='cuda'": backend == "cuda",
            f"config={config!r}": config,
            "grad_preferred_element_type": grad_preferred_element_type is not None,
        }
        if option := next((option for option, given in demanded.items() if given), None):
            raise TypeError(
                f"jax_gemm.matmul: {option} was asked for, but {reason}; got {_describe(a, b)}"
            ) from None
        backend = "xla"
    else:
        _check_config(config, math)
    if backend == "xla":
        out = jnp.matmul(a, b, precision=precision, preferred_element_type=preferred_element_type)
        return out if name is None else checkpoint_name(out, name)
    if backend == "cuda" and (missing := _ffi.unavailable() or _ffi.missing_cuda()):
        raise RuntimeError(f"jax_gemm.matmul: backend='cuda' was asked for, but {missing}")

    if grad_preferred_element_type is None and a.dtype != b.dtype:
        a, b = a.astype(operand_type), b.astype(operand_type)
    out = bind(
        a,
        b,
        dimension_numbers=form.dimension_numbers,
        precision=canonical,
        preferred_element_type=result_type,
        out_permutation=form.out_permutation,
        operand_type=None if a.dtype == b.dtype else operand_type,
        config=config or "",
        backend=backend,
    )
    out = lax.squeeze(out, tuple(range(form.leading_ones)))
    return out if name is None else checkpoint_name(out, name)


class _Form(NamedTuple):
    dimension_numbers: DimensionNumbers
    out_permutation: tuple[int, ...]
    leading_ones: int  # axes of size 1 to remove from the permuted result


def _form(a: jax.Array, b: jax.Array) -> _Form:
    """NumPy's rules in dot_general's terms.

    A batch axis that only one operand has, or that is 1 in the other, stays a free axis of its operand, and
    the permutation brings it to its place: nothing is broadcast. Axes of size 1 that meet a larger one
    become free as well, and lead the result.
    """
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(
            f"jax_gemm.matmul: operands have at least one dimension, got {_describe(a, b)}; multiply by a "
            "scalar with *"
        )
    b_contracted = max(b.ndim - 2, 0)
    if a.shape[-1] != b.shape[b_contracted]:
        axis = "only" if b.ndim == 1 else "second-to-last"
        raise ValueError(
            f"jax_gemm.matmul: the last axis of a and the {axis} axis of b "
            f"have one size K, got {a.shape[-1]} and {b.shape[b_contracted]} in {_describe(a, b)}"
        )
    a_batch_ndim, b_batch_ndim = max(a.ndim - 2, 0), b_contracted
    batch_ndim = max(a_batch_ndim, b_batch_ndim)
    a_batch, b_batch, batch, a_free, b_free = [], [], [], [], []  # the last three: positions in the result
    removed = -1
    for position in range(batch_ndim):
        a_axis, b_axis = position - batch_ndim + a_batch_ndim, position - batch_ndim + b_batch_ndim
        if a_axis < 0:
            b_free.append(position)
        elif b_axis < 0:
            a_free.append(position)
        elif a.shape[a_axis] == b.shape[b_axis]:
            a_batch.append(a_axis)
            b_batch.append(b_axis)
            batch.append(position)
        elif a.shape[a_axis] == 1 or b.shape[b_axis] == 1:
            a_free.append(removed if a.shape[a_axis] == 1 else position)
            b_free.append(removed if b.shape[b_axis] == 1 else position)
        else:
            raise ValueError(
                f"jax_gemm.matmul: leading dimensions are equal, 1 or absent in one operand, got "
                f"{a.shape[a_axis]} and {b.shape[b_axis]} in {_describe(a, b)}"
            )
    a_free += [batch_ndim] * (a.ndim > 1)
    b_free += [batch_ndim + 1] * (b.ndim > 1)
    positions = batch + a_free + b_free
    return _Form(
        (((a.ndim - 1,), (b_contracted,)), (tuple(a_batch), tuple(b_batch))),
        tuple(sorted(range(len(positions)), key=positions.__getitem__)),
        positions.count(removed),
    )


def _as_array(x: Any, name: str) -> jax.Array:
    if not isinstance(x, bool | int | float | complex | np.ndarray | np.generic | jax.Array) and not hasattr(
        x, "__jax_array__"
    ):
        raise TypeError(f"jax_gemm.matmul: {name} is an array, got {type(x).__name__}")
    return jnp.asarray(x)


def _promoted(a: jax.Array, b: jax.Array) -> np.dtype:
    try:
        return np.dtype(jnp.result_type(a, b))
    except ValueError as error:  # jax.dtypes.TypePromotionError
        raise TypeError(
            f"jax_gemm.matmul: {_describe(a, b)} cannot be promoted to one type; cast one of them. Kernels "
            f"take {KERNEL_TYPES_TEXT}; XLA computes any other type that both operands have. {error}"
        ) from error


def _narrower(a: jax.Array, b: jax.Array, gradients: np.dtype) -> np.dtype:
    """The type to multiply in, where the gradient of an operand of type `gradients` is to have that."""
    narrow = a.dtype if b.dtype == gradients else b.dtype
    if gradients not in (a.dtype, b.dtype) or jnp.promote_types(narrow, gradients) != gradients:
        raise TypeError(
            f"jax_gemm.matmul: grad_preferred_element_type={gradients.name} is the type of one operand, and "
            f"the other's is it or narrower, because JAX ties a gradient's type to its operand's; got "
            f"{_describe(a, b)}. Keep the weights in {gradients.name}"
        )
    return narrow


def _weakly_promoted(a: jax.Array, b: jax.Array, promoted: np.dtype) -> bool:
    strong = [x.dtype for x in (a, b) if not jax.typeof(x).weak_type]
    return a.dtype != b.dtype and len(strong) < 2 and promoted not in strong


def _math(operands: np.dtype, precision: str) -> str:
    return {"bfloat16": "bf16", "float16": "f16"}.get(
        operands.name, "f32" if precision == "highest" else "tf32"
    )


def _check_config(config: str | None, math: str) -> None:
    if config is None:
        return
    names = [known["name"] for known in _ffi.core().configs() if known["math"] == math]
    if config not in names:
        raise ValueError(
            f"jax_gemm.matmul: {config!r} is not a configuration for {math}; there are {', '.join(names)}"
        )


def _describe(a: jax.Array, b: jax.Array) -> str:
    return f"a of shape {a.shape} and type {a.dtype.name}, b of shape {b.shape} and type {b.dtype.name}"
