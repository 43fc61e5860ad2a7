"""Programs exported by `jax.export`."""

from __future__ import annotations

from jax import export

from jax_gemm import _ffi


def export_disabled_checks() -> list[export.DisabledSafetyCheck]:
    """The checks to disable so that `jax.export` writes a program with our products.

    JAX asks for this of every custom call whose compatibility it does not guarantee itself. Ours is frozen:
    the target's name holds a version, with the operands and attributes that it had, and every later release
    computes it. The process that runs the program has to import jax_gemm first.

    Example:
      >>> exported = jax.export.export(  # doctest: +SKIP
      ...     jax.jit(f), platforms=("cpu", "cuda"), disabled_checks=jax_gemm.export_disabled_checks()
      ... )(*arguments)
    """
    return [export.DisabledSafetyCheck.custom_call(_ffi.TARGET)]
