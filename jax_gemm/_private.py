"""All that is used of JAX's private interfaces, each with what happens in a version that lacks it."""

from __future__ import annotations

from jax.extend.core import Primitive


def requires_devices(primitive: Primitive) -> bool:
    """Has programs that hold `primitive` lowered for their devices, as `custom_partitioning` needs.

    False where this JAX has no such list: then `primitive` must not be partitioned.
    """
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering
    except ImportError:
        return False
    prim_requires_devices_during_lowering.add(primitive)
    return True
