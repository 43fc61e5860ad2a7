"""The compiled part of jax_gemm: registrations, the table of kernels, the choice among them."""

from collections.abc import Sequence
from typing import Literal, TypedDict

from typing_extensions import CapsuleType

DTypeName = Literal["bfloat16", "float16", "float32"]
MathName = Literal["bf16", "f16", "tf32", "f32"]
Precision = Literal["default", "highest"]

class Config(TypedDict):
    """A row of the table of kernel configurations; sizes in elements."""

    name: str
    family: str
    math: MathName
    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    stages: int
    any_alignment: bool
    threads: int
    shared_bytes: int

class Device(TypedDict):
    """What the choice of a configuration depends on."""

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    clock_ghz: float
    bandwidth_gbs: float
    latency_us: float
    peak_tflops: dict[MathName, float]

class RingModel(TypedDict):
    """T_c and T_m of one K tile, and the ring depth that hides the latency."""

    compute_us: float
    memory_us: float
    stages_needed: int

class Estimate(RingModel):
    """The cost model's prediction; `floor_us` is the physical limit."""

    latency_us: float
    blocks_per_sm: int
    tiles: float
    waves: float
    total_us: float
    floor_us: float
    tflops: float

class Candidate(TypedDict):
    """A configuration of the right math: its estimate, or in `illegal` why it cannot run."""

    name: str
    illegal: str
    estimate: Estimate | None

class Operand(TypedDict):
    """An operand as the kernel reads it; strides in elements, 0 repeats."""

    major: Literal["K", "M", "N"]
    ld: int
    batch_strides: list[int]
    alignment: int

class Output(TypedDict):
    """The result as the kernel writes it; strides in elements."""

    ld: int
    batch_strides: list[int]

class Plan(TypedDict):
    """How a contraction is computed. `swapped`: `a` here is the caller's b.

    An empty problem launches nothing: `config` and `estimate` are None.
    """

    math: MathName
    m: int
    n: int
    k: int
    batch: list[int]
    a: Operand
    b: Operand
    out: Output
    description: str
    swapped: bool
    device: str
    config: str | None
    estimate: Estimate | None
    candidates: list[Candidate]

class BuildInfo(TypedDict):
    """How this extension was built."""

    version: str
    architectures: str
    cuda_version: str
    ffi_api_minor: int

def registrations() -> dict[str, CapsuleType]:
    """FFI handlers by target name, for `jax.ffi.register_ffi_target(..., platform="CUDA")`."""

def ffi_api_minor() -> int:
    """Minor version of the FFI headers compiled against; runtimes with a lower one refuse it."""

def configs() -> list[Config]:
    """The whole table of kernel configurations."""

def known_devices() -> list[Device]:
    """Devices that `plan` knows by name."""

def device_count() -> int:
    """Number of usable CUDA devices; 0 without a driver."""

def device_facts(ordinal: int) -> Device:
    """Facts of a device that is present; ValueError if it is not."""

def build_info() -> BuildInfo:
    """Versions and architectures of this build."""

def expressible(contraction: str, a_shape: Sequence[int], b_shape: Sequence[int]) -> str:
    """Why kernels cannot read the operands of e.g. "abc,acd->abd" in place, or "" where they can."""

def plan(
    contraction: str,
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    dtype: DTypeName,
    out_dtype: DTypeName,
    precision: Precision,
    config: str,
    device: str | int,
    alignment: int = 16,
) -> Plan:
    """What a call would do; `config` "" chooses. ValueError with the library's message if it fails.

    `device` is the name of a known device or the ordinal of one that is present; `alignment` is
    that of every buffer, in bytes.
    """

def ring_model(
    tile_m: int,
    tile_n: int,
    tile_k: int,
    element_bytes: int,
    peak_tflops: float,
    bandwidth_gbs: float,
    sm_count: int,
    latency_us: float,
) -> RingModel:
    """The ring-depth model for any machine."""
