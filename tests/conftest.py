"""Eight CPU devices, strict JAX, and no test of a GPU where there is none."""

from __future__ import annotations

import os

# Before JAX starts: it reads these once.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
)
os.environ.setdefault(
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1"
)  # the plugin may be here without CUDA's libraries
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import pytest

# Strict: nothing broadcasts or reuses old key types unasked.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_legacy_prng_key", "error")


def has_gpu() -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


# Before pytest's own hook, which deselects by marker.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not has_gpu():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
        return
    # What is tested on any backend, is tested on the GPU too.
    for item in items:
        if item.path.name in ("test_matmul.py", "test_transforms.py"):
            item.add_marker("gpu")
