"""Pictures of the results: `python benchmarks/plot.py benchmarks/results/nvidia-h200.jsonl docs/img`."""

from __future__ import annotations

import json
import math
import pathlib
import sys
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

# What the instructions can issue on an H200, TFLOP/s: mma.sync measured on N(0, 1) data, FFMA from its clock.
CEILINGS = {"bfloat16": 631, "float16": 631, "float32": 324, "float32/highest": 67}


def latest(path: pathlib.Path) -> list[dict[str, Any]]:
    """The newest result of each case."""
    results: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        result = json.loads(line)
        key = tuple(result[name] for name in ("suite", "dtype", "layout", "batch", "m", "n", "k"))
        results[key] = result
    return list(results.values())


def plot_speedups(results: list[dict[str, Any]], path: pathlib.Path) -> None:
    suites = list(dict.fromkeys(r["suite"] for r in results))
    figure, axes = plt.subplots(figsize=(7, 0.6 * len(suites) + 1.2), layout="constrained")
    for y, suite in enumerate(suites):
        speedups = [r["speedup"] for r in results if r["suite"] == suite]
        axes.scatter(speedups, [y] * len(speedups), s=14, alpha=0.6, color="tab:blue")
        mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
        axes.plot([mean, mean], [y - 0.3, y + 0.3], color="black")
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yticks(range(len(suites)), suites)
    axes.invert_yaxis()
    axes.set_xlabel("speedup over jnp.matmul (bar: geometric mean)")
    figure.savefig(path)


def plot_ceilings(results: list[dict[str, Any]], path: pathlib.Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for dtype, ceiling in CEILINGS.items():
        points = [r for r in results if r["dtype"] == dtype]
        intensity = [
            2 * r["m"] * r["n"] * r["k"] * r["batch"] / (r["gbps"] * r["ours_us"] * 1e3) for r in points
        ]
        marks = axes.scatter(intensity, [r["tflops"] for r in points], s=16, label=dtype)
        axes.axhline(ceiling, color=marks.get_facecolor()[0], linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("operations per byte of operands and result")
    axes.set_ylabel("TFLOP/s (dashed: issue rate of the instruction)")
    axes.legend()
    figure.savefig(path)


def main(results: str, folder: str) -> None:
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    found = latest(pathlib.Path(results))
    plot_speedups(found, out / "speedup.svg")
    plot_ceilings(found, out / "rate.svg")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
