"""Device time of jitted functions, read from JAX's profiler."""

from __future__ import annotations

import glob
import itertools
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

# Operands are rotated until this much lies between two uses of one: several times the L2 of any GPU.
ROTATED_BYTES = 512 << 20

Arguments = tuple[jax.Array, ...]


def _evict(x: jax.Array) -> jax.Array:
    return x.sum()


_read = jax.jit(_evict)


def interleaved_medians(
    functions: Sequence[Callable[..., jax.Array]],
    sets: Sequence[Arguments],
    repetitions: int,
    *,
    evict: bool = False,
) -> list[float]:
    """Median device time in microseconds of each of the jitted `functions`, in turn on rotating arguments.

    Each call takes the next of the sets, so that none finds its operands in the L2 because the one before it
    has read them; where all sets together are too small for that, `evict` reads a large buffer before each
    call, which leaves the L2 full of unmodified lines. Every other round goes in the opposite order.

    A call's time is the sum of its kernels' (and memsets' and copies') durations, so that neither the host
    nor the gaps between launches count. The functions' names must differ: they tell their modules apart.
    """
    large = jnp.ones(ROTATED_BYTES // 4 if evict else 1, jnp.float32)
    _read(large).block_until_ready()
    arguments = itertools.cycle(sets)
    with tempfile.TemporaryDirectory(prefix="jax_gemm_") as folder:
        with jax.profiler.trace(folder):
            for repetition in range(repetitions):
                for function in functions if repetition % 2 == 0 else reversed(functions):
                    if evict:
                        _read(large).block_until_ready()
                    function(*next(arguments)).block_until_ready()
        (path,) = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
        events = _device_events(jax.profiler.ProfileData.from_file(path))
    medians = []
    for function in functions:
        durations = events[f"jit_{function.__name__}"]
        if not durations or len(durations) % repetitions:
            raise RuntimeError(
                f"jax_gemm: the profile holds {len(durations)} device events of {repetitions} calls to "
                f"{function.__name__}, of the modules {sorted(events)}"
            )
        # All calls launch the same kernels, in the same order.
        kernels = len(durations) // repetitions
        calls = [sum(durations[i : i + kernels]) for i in range(0, len(durations), kernels)]
        medians.append(statistics.median(calls) / 1000)
    return medians


def _device_events(profile: jax.profiler.ProfileData) -> dict[str, list[float]]:
    """Durations in nanoseconds of what ran on the GPU's streams, by module, in the order of time."""
    events: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for plane in profile.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        for line in plane.lines:
            if line.name.startswith("Stream"):
                for event in line.events:
                    module = str(dict(event.stats).get("hlo_module", ""))
                    events[module].append((event.start_ns, event.duration_ns))
    return {module: [duration for _, duration in sorted(found)] for module, found in events.items()}
