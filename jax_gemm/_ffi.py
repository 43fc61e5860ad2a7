"""The compiled extension: loading it, registering its FFI target, saying why it cannot be used.

Kernels are loaded onto a device by the extension itself, once a device, at its first product.
"""

from __future__ import annotations

import functools
import importlib
import pathlib
import re
import types
import warnings
from typing import Any

import jax

# Frozen with its operands and attributes: exported programs ask for it by this name.
TARGET = "jax_gemm_v1"


@functools.cache
def _load() -> tuple[types.ModuleType | None, str]:
    try:
        return importlib.import_module("jax_gemm._core"), ""
    except ImportError as error:
        return None, f"its compiled extension cannot be loaded ({error}); install it with `pip install .`"


def core() -> Any:
    """The extension, typed in _core.pyi. Raises RuntimeError where it cannot be loaded."""
    module, reason = _load()
    if module is None:
        raise RuntimeError(f"jax_gemm: {reason}")
    return module


def runtime_api_minor() -> int:
    """Minor version of the FFI that the installed jaxlib speaks."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = re.search(r"#define\s+XLA_FFI_API_MINOR\s+(\d+)", header.read_text())
    if found is None:
        raise RuntimeError(f"jax_gemm: no XLA_FFI_API_MINOR in {header}")
    return int(found[1])


def register() -> str:
    """Registers the FFI target with JAX; why the kernels cannot be used, or ""."""
    module, reason = _load()
    if module is None:
        return reason
    # A runtime refuses handlers of a newer FFI, and some then break their other handlers as well.
    built, runtime = module.ffi_api_minor(), runtime_api_minor()
    if built > runtime:
        return (
            f"it was built for XLA's FFI 0.{built} and the installed jaxlib speaks 0.{runtime}; upgrade "
            "jaxlib, or rebuild jax_gemm against this one"
        )
    for name, capsule in module.registrations().items():
        jax.ffi.register_ffi_target(name, capsule, platform="CUDA")
    return ""


@functools.cache
def unavailable() -> str:
    """Why the kernels cannot be used on any device, or "". Registers them at the first call."""
    return register()


@functools.cache
def warn_fallback(reason: str) -> None:
    """Says once for each reason that XLA computes instead."""
    warnings.warn(f"jax_gemm: products go to XLA because {reason}", RuntimeWarning, stacklevel=2)


def missing_cuda() -> str:
    """Why JAX has no CUDA device, or ""."""
    try:
        jax.devices("cuda")
    except RuntimeError as error:
        return (
            f"there is no CUDA device: looked for devices of JAX's platform 'cuda' ({error}); install "
            "`jax[cuda13]` or `jax[cuda12]`, check that `nvidia-smi` lists a GPU, and that JAX_PLATFORMS, if "
            "set, names cuda"
        )
    return ""
