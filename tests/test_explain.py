"""`explain` shows the cost model's own figures, for every product that `matmul` accepts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import jax_gemm
from jax_gemm import _core


def test_it_is_what_the_library_chooses() -> None:
    explanation = jax_gemm.explain(4096, 4096, 4096, layout="nt", device="h200")
    plan = _core.plan("mk,nk->mn", (4096, 4096), (4096, 4096), "bfloat16", "bfloat16", "default", "", "h200")
    assert explanation.config is not None
    assert explanation.config["name"] == plan["config"]
    assert explanation.estimate == plan["estimate"]
    assert list(explanation.candidates) == plan["candidates"]


def test_report() -> None:
    report = str(jax_gemm.explain(4096, 4096, 4096, device="h200"))
    for part in ("sm80_bf16", "tile", "stages", "T_c", "T_m", "latency", "occupancy", "waves", "predicted"):
        assert part in report
    assert re.search(r"physical limit [\d.]+ us", report)
    assert report.count("sm80_bf16") == sum(c["math"] == "bf16" for c in _core.configs())


def test_why_a_configuration_cannot_run() -> None:
    report = str(jax_gemm.explain(512, 4097, 4096, device="h200"))
    assert "multiples of 2 bytes" in report
    assert re.search(r"cannot run: .*aligned to 16 bytes", report)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    ("options", "math"),
    [
        ({"dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float16", "out_dtype": "float32"}, "f16"),
        ({"dtype": "float32"}, "tf32"),
        ({"dtype": "float32", "precision": "highest"}, "f32"),
    ],
)
def test_each_product(layout: str, batch: int, options: dict[str, Any], math: str) -> None:
    explanation = jax_gemm.explain(256, 384, 512, layout=layout, batch=batch, device="a100", **options)
    assert explanation.config is not None
    assert explanation.config["math"] == math
    assert explanation.estimate is not None
    assert explanation.estimate["floor_us"] <= explanation.estimate["total_us"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "int8"}, "goes to XLA: no kernel multiplies int8 to int8"),
        ({"dtype": "float64"}, "goes to XLA: no kernel multiplies float64"),
        ({"dtype": "complex64"}, "goes to XLA: no kernel multiplies complex64"),
        ({"dtype": "float32", "out_dtype": "bfloat16"}, "float32 to bfloat16"),
        ({"dtype": "float32", "precision": "BF16_BF16_F32_X3"}, "by the algorithm BF16_BF16_F32_X3"),
        ({"batch": 0}, "nothing is launched"),
    ],
)
def test_where_no_kernel_runs(options: dict[str, Any], reason: str) -> None:
    explanation = jax_gemm.explain(4, 5, 6, **options)
    assert explanation.config is None
    assert reason in explanation.reason
    assert explanation.reason in str(explanation)


def test_frozen() -> None:
    explanation = jax_gemm.explain(4, 5, 6)
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.m = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layout": "xy"}, ValueError, "layout is one of nn, nt, tn, tt"),
        ({"device": "abacus"}, ValueError, "device is an ordinal or one of h200"),
        ({"device": 63}, ValueError, "63"),
        ({"batch": -1}, ValueError, "not negative"),
        ({"precision": "lowest"}, ValueError, "'lowest' is not known"),
        ({"dtype": "float99"}, TypeError, "'float99'"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        jax_gemm.explain(4, 5, 6, **options)
