"""The compiled kernels themselves: each keeps to its registers and uses the instructions it should."""

from __future__ import annotations

import collections
import functools
import importlib.util
import os
import pathlib
import re
import subprocess
from typing import NamedTuple

import pytest

from jax_gemm import _core


class Kernel(NamedTuple):
    architecture: str  # "sm_90"
    config: int  # index in the table
    a_mn_major: bool
    b_mn_major: bool
    whole_chunks: bool


KERNEL = re.compile(r"gemm_kernelILi(?P<config>\d+)ELN\w*?MajorE(?P<a>\d)ELS\w*?_(?P<b>\d)ELb(?P<whole>\d)E")


def tools() -> pathlib.Path | None:
    """The folder of NVIDIA's binary tools, from their packages."""
    spec = importlib.util.find_spec("nvidia.cu13") if importlib.util.find_spec("nvidia") else None
    for root in spec.submodule_search_locations or () if spec else ():
        if pathlib.Path(root, "bin", "cuobjdump").exists():
            return pathlib.Path(root, "bin")
    return None


def cuobjdump(*options: str) -> str:
    folder = tools()
    if folder is None:
        pytest.skip("nvidia-cuda-cuobjdump is not installed")
    library = pathlib.Path(_core.__file__).with_name("libjax_gemm.so")
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = [str(folder / "cuobjdump"), *options, str(library)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
    return done.stdout


def kernel_of(name: str, architecture: str) -> Kernel | None:
    found = KERNEL.search(name)
    if found is None:
        return None
    flags = (found[group] == "1" for group in ("a", "b", "whole"))
    return Kernel(architecture, int(found["config"]), *flags)


@functools.cache
def resources() -> dict[Kernel, dict[str, int]]:
    """Registers and bytes of stack, shared and local memory of each kernel."""
    usage: dict[Kernel, dict[str, int]] = {}
    architecture, kernel = "", None
    for line in cuobjdump("--dump-resource-usage").splitlines():
        if found := re.search(r"arch = (sm_\w+)", line):
            architecture = found[1]
        elif found := re.search(r"Function (\S+):", line):
            kernel = kernel_of(found[1], architecture)
        elif kernel is not None and "REG:" in line:
            usage[kernel] = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", line)}
    return usage


@functools.cache
def listing() -> dict[Kernel, list[str]]:
    """The instructions, in order and without predicates, of each kernel of the newest architecture."""
    newest = max(kernel.architecture for kernel in resources())
    lines: dict[Kernel, list[str]] = {}
    kernel = None
    for line in cuobjdump("--dump-sass", "--gpu-architecture", newest).splitlines():
        if "Function :" in line:
            kernel = kernel_of(line, newest)
            if kernel is not None:
                lines[kernel] = []
        elif kernel is not None and (
            found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^;]*);", line)
        ):
            lines[kernel].append(found[1])
    return lines


@functools.cache
def instructions() -> dict[Kernel, collections.Counter[str]]:
    """How often each instruction, modifiers included, stands in each kernel of the newest architecture."""
    return {
        kernel: collections.Counter(line.split(maxsplit=1)[0] for line in lines)
        for kernel, lines in listing().items()
    }


def uses(kernel: Kernel, pattern: str) -> int:
    return sum(n for name, n in instructions()[kernel].items() if re.match(pattern, name))


def test_every_configuration_is_built_for_every_major() -> None:
    built = {kernel for kernel in resources() if kernel.architecture == max(resources()).architecture}
    expected = 0
    for config in _core.configs():
        expected += 8 if config["any_alignment"] else 4
    assert len(built) == expected


def test_no_spills() -> None:
    spilling = {kernel: usage for kernel, usage in resources().items() if usage["STACK"] or usage["LOCAL"]}
    assert not spilling
    assert not [kernel for kernel in instructions() if uses(kernel, r"LDL|STL")]


def test_registers_leave_room_for_the_block() -> None:
    for kernel, usage in resources().items():
        threads = _core.configs()[kernel.config]["threads"]
        assert usage["REG"] * threads <= 65536, kernel


@pytest.mark.parametrize(
    ("math", "multiply", "foreign"),
    [
        ("bf16", r"HMMA\.16816\.F32\.BF16", r"FFMA"),
        ("f16", r"HMMA\.16816\.F32$", r"FFMA"),
        ("tf32", r"HMMA\.1688\.F32\.TF32", r"FFMA"),
        ("f32", r"FFMA", r"HMMA"),
    ],
)
def test_multiplies_with_the_instruction_of_its_math(math: str, multiply: str, foreign: str) -> None:
    for kernel in instructions():
        config = _core.configs()[kernel.config]
        if config["math"] != math:
            continue
        # One main loop, unrolled over a K tile: all of its multiplications and none of another kind.
        k, per_thread = (1, 1) if math == "f32" else (8 if math == "tf32" else 16, 16 * 8)
        products = config["warp_m"] * config["warp_n"] * config["tile_k"]
        lanes = 32 if math == "f32" else 1
        assert uses(kernel, multiply) == products // (k * per_thread * lanes), kernel
        assert uses(kernel, foreign) == 0, kernel


WIDE_COPY = r"LDGSTS\.E\.BYPASS\.(LTC128B\.)?128"
WORD_COPY = r"LDGSTS\.E(\.LTC128B)?(\.ZFILL)?$"


def test_copies_are_asynchronous_and_16_bytes_wide() -> None:
    """But for K-major operands of FFMA, which are transposed on the way, word by word."""
    for kernel in instructions():
        config = _core.configs()[kernel.config]
        element = 2 if config["math"] in ("bf16", "f16") else 4
        wide = words = 0
        for tile, mn_major in (("tile_m", kernel.a_mn_major), ("tile_n", kernel.b_mn_major)):
            tile_bytes = config[tile] * config["tile_k"] * element
            if config["math"] == "f32" and not mn_major:
                words += tile_bytes // 4
            else:
                wide += tile_bytes // 16
        if kernel.whole_chunks:  # the prologue's and the main loop's, each of one tile, and no others
            assert uses(kernel, WIDE_COPY) == 2 * wide // config["threads"], kernel
            assert uses(kernel, WORD_COPY) == 2 * words // config["threads"], kernel
            assert uses(kernel, "LDGSTS") == 2 * (wide + words) // config["threads"], kernel
        elif wide:
            assert uses(kernel, WIDE_COPY), kernel
            assert uses(kernel, r"LDGSTS\.E(\.\w+)*\.64"), kernel
            assert uses(kernel, WORD_COPY), kernel


def test_fragments_are_loaded_by_the_matrix_or_in_16_bytes() -> None:
    for kernel in instructions():
        config = _core.configs()[kernel.config]
        by_words = config["math"] in ("tf32", "f32")
        plain, transposed = uses(kernel, r"LDSM\.16\.M88\.4"), uses(kernel, r"LDSM\.16\.MT88\.4")
        a, b = kernel.a_mn_major, kernel.b_mn_major
        assert bool(plain) == (config["math"] != "f32" and not (a and b)), kernel
        assert bool(transposed) == (not by_words and (a or b)), kernel
        if by_words:
            assert uses(kernel, r"LDS\.128"), kernel


def test_ffma_seldom_reads_two_registers_of_a_bank() -> None:
    """The banks are odd and even registers; what the FFMA before has marked for reuse is not read again."""
    for kernel, lines in listing().items():
        if _core.configs()[kernel.config]["math"] != "f32" or not kernel.whole_chunks:
            continue
        conflicts = total = 0
        held: list[str | None] = [None, None, None]
        for line in lines:
            if not line.startswith("FFMA"):
                held = [None, None, None]
                continue
            sources = [operand.strip() for operand in line.split(",")[1:4]]
            read = {
                register
                for operand, kept in zip(sources, held, strict=True)
                if (register := operand.removesuffix(".reuse")) != kept
            }
            banks = [int(register.strip("-R")) % 2 for register in read]
            conflicts += len(set(banks)) < len(banks)
            held = [s.removesuffix(".reuse") if s.endswith(".reuse") else None for s in sources]
            total += 1
        assert conflicts / total < 1 / 3, (kernel, conflicts, total)


def test_output_is_stored_16_bytes_wide() -> None:
    assert all(uses(kernel, r"STG\.E\.128") for kernel in instructions())
