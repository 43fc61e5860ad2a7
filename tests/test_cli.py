"""The command line: what it prints, and how it exits."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import types
from typing import Any

import jax
import pytest
from click.testing import CliRunner, Result

import jax_gemm
from jax_gemm import _ffi
from jax_gemm.__main__ import main


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_info() -> None:
    result = invoke("info")
    assert result.exit_code == 0
    for part in (
        jax_gemm.__version__,
        jax.__version__,
        "jaxlib",
        "CUDA plugin",
        "FFI API",
        "sm80 bf16",
        "GPU",
    ):
        assert part in result.output
    assert f"runtime 0.{_ffi.runtime_api_minor()}, built for 0.{_ffi.core().ffi_api_minor()}" in result.output


def test_info_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ffi, "missing_cuda", lambda: "there is no CUDA device")
    monkeypatch.setattr(_ffi, "unavailable", lambda: "it was built for XLA's FFI 0.9")
    result = invoke("info")
    assert "missing: it was built for XLA's FFI 0.9" in result.output
    assert "missing: there is no CUDA device" in result.output
    assert "computed by XLA" in result.output


def test_info_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ffi, "_load", lambda: (None, "its compiled extension cannot be loaded"))
    result = invoke("info")
    assert result.exit_code == 0
    assert "kernels" in result.output


def test_explain() -> None:
    result = invoke(
        "explain", "512", "4096", "1024", "--dtype", "float16", "--layout", "nt", "--device", "h200"
    )
    assert result.exit_code == 0
    expected = jax_gemm.explain(512, 4096, 1024, dtype="float16", layout="nt", device="h200")
    assert result.output == f"{expected}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["explain", "1", "2"], "Missing argument"),
        (["explain", "1", "2", "-3"], "No such option"),
        (["explain", "1", "2", "3", "--layout", "xy"], "'xy' is not one of"),
        (["explain", "1", "2", "3", "--device", "abacus"], "device is an ordinal or one of"),
        (["explain", "1", "2", "3", "--dtype", "float99"], "'float99' is not the name of a type"),
        (["explain", "1", "2", "3", "--precision", "lowest"], "'lowest' is not known"),
        (["unknown"], "No such command"),
    ],
)
def test_wrong_arguments(args: list[str], message: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("status", "code"), [(None, 0), (0, 0), (3, 3)])
def test_bench_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, status: int | None, code: int) -> None:
    seen: dict[str, Any] = {}

    def run(**options: Any) -> int | None:
        seen.update(options)
        return status

    monkeypatch.setitem(sys.modules, "jax_gemm._bench", types.SimpleNamespace(main=run))
    assert invoke("bench", "--suite", "large", "--suite", "odd", "--quick").exit_code == code
    assert seen == {"suites": ["large", "odd"], "quick": True, "output": None}


def test_bench_failure_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**options: Any) -> None:
        raise ValueError("no suite is called 'none'")

    monkeypatch.setitem(sys.modules, "jax_gemm._bench", types.SimpleNamespace(main=run))
    result = invoke("bench", "--suite", "none")
    assert result.exit_code == 1
    assert "Error: no suite is called 'none'" in result.output


def test_as_a_module(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "jax_gemm", "explain", "64", "64", "64", "--device", "h200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("bfloat16 M 64 N 64 K 64")
