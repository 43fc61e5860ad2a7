"""The benchmark's choices that need no GPU; `test_gpu.py` and CI's `bench` run the rest."""

from __future__ import annotations

import dataclasses

import pytest

import jax_gemm
from jax_gemm._bench import chosen
from jax_gemm._cases import Case, error_bound, select_cases


def case(**fields: object) -> Case:
    return dataclasses.replace(Case("large_sm80", 4096, 4096, 4096), **fields)  # type: ignore[arg-type]


def test_a_family_gets_its_fastest_legal_configuration() -> None:
    found = chosen(case(family="sm80"))
    candidates = jax_gemm.explain(4096, 4096, 4096, dtype="bfloat16").candidates
    times = {c["name"]: c["estimate"]["total_us"] for c in candidates if c["estimate"]}
    assert times[found] == min(times.values())


def test_a_family_takes_no_illegal_configuration() -> None:
    found = chosen(case(n=4097, family="sm80"))
    assert next(c for c in jax_gemm._ffi.core().configs() if c["name"] == found)["any_alignment"]


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ValueError, match="no configuration of the family sm70"):
        chosen(case(family="sm70"))


def test_without_a_family_the_library_chooses() -> None:
    assert chosen(case(family=None)) == jax_gemm.explain(4096, 4096, 4096, dtype="bfloat16").config["name"]  # type: ignore[index]


def test_every_suite_has_cases() -> None:
    assert {c.suite for c in select_cases([])} >= {"large", "large_sm80", "f16", "tf32", "f32", "odd"}


def test_error_bound_grows_with_the_base_and_with_k() -> None:
    assert error_bound(0.0, 1) == 2.0**-24
    assert error_bound(1e-3, 4096) == pytest.approx(2e-3 + 64 * 2.0**-24)
