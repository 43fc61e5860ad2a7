"""The kernels' index maps, compiled for the host: see index_maps.cc."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
SOURCES = HERE.parent / "cuda"
COMPILER = shutil.which("c++")


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
@pytest.mark.skipif(not SOURCES.exists(), reason="not a source tree")
def test_index_maps(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "index_maps"
    command = [COMPILER, "-std=c++20", "-O1", f"-I{SOURCES}", str(HERE / "index_maps.cc"), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[:2000]
