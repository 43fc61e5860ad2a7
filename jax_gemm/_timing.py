"""Device time of jitted functions, read from JAX's profiler."""

from __future__ import annotations

import glob
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence

import jax

Arguments = tuple[jax.Array, ...]


def interleaved_medians(
    functions: Sequence[Callable[..., jax.Array]], sets: Sequence[Arguments], repetitions: int
) -> list[float]:
    """Median device time in microseconds of each of the jitted `functions`, in turn on rotating arguments.

    A call's time is the sum of its kernels' (and memsets' and copies') durations, so that neither the host
    nor the gaps between launches count. The functions' names must differ: they tell their modules apart.
    """
    with tempfile.TemporaryDirectory(prefix="jax_gemm_") as folder:
        with jax.profiler.trace(folder):
            for repetition in range(repetitions):
                for function in functions:
                    function(*sets[repetition % len(sets)]).block_until_ready()
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
