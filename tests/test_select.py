"""The table of configurations, the legality predicate, the cost model and the choice. No GPU."""

from __future__ import annotations

import math

import pytest

from jax_gemm import _core

DTYPES = {"bf16": "bfloat16", "f16": "float16", "tf32": "float32", "f32": "float32"}
DEVICES = [device["name"] for device in _core.known_devices()]


def plan(
    m: int, n: int, k: int, kind: str = "bf16", config: str = "", device: str = "h200",
    out_dtype: str | None = None, alignment: int = 16, batch: int = 1,
) -> _core.Plan:  # fmt: skip
    return _core.plan(
        "bmk,bkn->bmn", (batch, m, k), (batch, k, n), DTYPES[kind],  # type: ignore[arg-type]
        out_dtype or DTYPES[kind],  # type: ignore[arg-type]
        "highest" if kind == "f32" else "default", config, device, alignment,
    )  # fmt: skip


def candidate(p: _core.Plan, name: str) -> _core.Candidate:
    return next(entry for entry in p["candidates"] if entry["name"] == name)


def names(kind: str) -> list[str]:
    return [config["name"] for config in _core.configs() if config["math"] == kind]


# ---- The table ----


def test_names_are_unique_and_say_what_they_name() -> None:
    configs = _core.configs()
    assert len({config["name"] for config in configs}) == len(configs)
    for c in configs:
        tiles = f"{c['tile_m']}x{c['tile_n']}x{c['tile_k']}_w{c['warp_m']}x{c['warp_n']}_s{c['stages']}"
        assert c["name"] == f"{c['family']}_{c['math']}_{tiles}"


def test_table_is_consistent() -> None:
    for c in _core.configs():
        assert c["tile_m"] % c["warp_m"] == c["tile_n"] % c["warp_n"] == 0
        assert c["threads"] == c["tile_m"] // c["warp_m"] * (c["tile_n"] // c["warp_n"]) * 32 <= 1024
        element = 2 if c["math"] in ("bf16", "f16") else 4
        padding = 2 * 16 * c["tile_k"] if c["math"] == "f32" else 0
        tiles = (c["tile_m"] + c["tile_n"]) * c["tile_k"] * element
        assert c["shared_bytes"] == c["stages"] * (tiles + padding)
        assert c["stages"] >= 3


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("alignment", [4, 8, 16])
def test_every_math_has_a_kernel_for_any_alignment_on_every_device(
    kind: str, device: str, alignment: int
) -> None:
    assert plan(127, 129, 131, kind, device=device, alignment=alignment)["config"] in names(kind)


# ---- The ring ----


def test_worked_example_rtx3060() -> None:
    """128x128 tiles of 2 bytes, 360 GB/s, 12.74 TFLOP/s: T_m / T_c = 0.55, computation-bound."""
    ring = _core.ring_model(128, 128, 32, 2, 12.74, 360, 28, 0.7)
    assert ring["memory_us"] / ring["compute_us"] == pytest.approx(0.553, abs=1e-3)
    assert ring["memory_us"] / ring["compute_us"] == pytest.approx(
        2 * 256 * 12.74e12 / (2 * 128 * 128 * 360e9)
    )


def test_rtx3060_rates() -> None:
    """12.74 TFLOP/s is its FFMA rate; tensor cores that accumulate in f32 reach twice that."""
    peaks = next(d for d in _core.known_devices() if d["name"] == "rtx3060")["peak_tflops"]
    assert peaks["f32"] == pytest.approx(12.74, rel=1e-3)
    assert peaks["f16"] == pytest.approx(2 * 12.74, rel=1e-3)
    assert peaks["tf32"] == pytest.approx(12.74, rel=1e-3)


def test_documented_rates() -> None:
    peaks = {device["name"]: device["peak_tflops"] for device in _core.known_devices()}
    assert peaks["a100"]["bf16"] == pytest.approx(312, rel=1e-2)
    assert peaks["a100"]["tf32"] == pytest.approx(156, rel=1e-2)
    assert peaks["a100"]["f32"] == pytest.approx(19.5, rel=1e-2)
    assert peaks["h200"]["bf16"] == pytest.approx(631, rel=1e-2)
    assert peaks["h200"]["tf32"] == pytest.approx(324, rel=1e-2)
    assert peaks["h200"]["f32"] == pytest.approx(67, rel=1e-2)


@pytest.mark.parametrize("latency_us", [0.1, 0.7, 2.0, 10.0])
@pytest.mark.parametrize("tile", [(64, 64, 64), (128, 128, 64), (128, 256, 64)])
@pytest.mark.parametrize("bandwidth_gbs", [360, 4800, 1e6])
def test_stages_formula(latency_us: float, tile: tuple[int, int, int], bandwidth_gbs: float) -> None:
    m, n, k = tile
    ring = _core.ring_model(m, n, k, 2, 631, bandwidth_gbs, 132, latency_us)
    assert ring["compute_us"] == pytest.approx(2 * m * n * k / (631e6 / 132))
    assert ring["memory_us"] == pytest.approx(2 * k * (m + n) / (bandwidth_gbs * 1e3 / 132))
    step = max(ring["compute_us"], ring["memory_us"])
    assert ring["stages_needed"] == 1 + math.ceil(latency_us / step)


# ---- Legality ----


def test_alignment_is_refused_with_both_alignments() -> None:
    name = next(c["name"] for c in _core.configs() if c["math"] == "bf16" and not c["any_alignment"])
    p = plan(128, 4097, 4096)
    assert "aligned to 16 bytes, they are aligned to 16 (A) and 2 (B)" in candidate(p, name)["illegal"]
    assert candidate(p, name)["estimate"] is None
    assert candidate(plan(128, 4096, 4096), name)["illegal"] == ""
    with pytest.raises(
        ValueError, match=r"jax_gemm: .*cannot compute bf16 M=128 N=4097 .* on h200: .*leave the"
    ):
        plan(128, 4097, 4096, config=name)


def test_shared_memory_is_refused_with_both_sizes() -> None:
    largest = max(_core.configs(), key=lambda c: c["shared_bytes"])
    limit = next(d for d in _core.known_devices() if d["name"] == "rtx3060")["shared_bytes_per_block"]
    assert largest["shared_bytes"] > limit
    p = plan(4096, 4096, 4096, largest["math"], device="rtx3060")
    reason = candidate(p, largest["name"])["illegal"]
    assert str(largest["shared_bytes"]) in reason
    assert str(limit) in reason


def test_other_math_is_refused() -> None:
    with pytest.raises(ValueError, match="it multiplies f16"):
        plan(64, 64, 64, "bf16", config=names("f16")[0])


def test_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="there is no configuration 'sm80_nothing'") as caught:
        plan(64, 64, 64, config="sm80_nothing")
    assert all(name in str(caught.value) for name in names("bf16"))
    assert "M=64 N=64 K=64" in str(caught.value)


@pytest.mark.parametrize(("kind", "out"), [("bf16", "float16"), ("f16", "bfloat16"), ("tf32", "bfloat16")])
def test_output_type_is_refused(kind: str, out: str) -> None:
    with pytest.raises(ValueError, match=f"not as {out}"):
        plan(64, 64, 64, kind, out_dtype=out)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_f32_output(kind: str) -> None:
    assert plan(64, 64, 64, kind, out_dtype="float32")["config"] in names(kind)


def test_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no configuration can compute .*more than the 2\^31 - 1 blocks"):
        plan(64, 64, 64, batch=2**32)
    assert plan(64, 64, 64, batch=2**31 - 1)["config"] is not None


def test_bad_arguments() -> None:
    product = "mk,kn->mn", (2, 2), (2, 2)
    with pytest.raises(ValueError, match="unknown device 'gtx'"):
        plan(64, 64, 64, device="gtx")
    with pytest.raises(ValueError, match="'default' or 'highest'"):
        _core.plan(*product, "bfloat16", "bfloat16", "high", "", "h200")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no kernel for 'int8'"):
        _core.plan(*product, "int8", "int8", "default", "", "h200")  # type: ignore[arg-type]


# ---- Choice ----


def test_choice_is_deterministic() -> None:
    for shape in [(1, 1, 1), (16, 4096, 4096), (4095, 4097, 4099), (8192, 8192, 8192)]:
        assert len({plan(*shape)["config"] for _ in range(20)}) == 1


@pytest.mark.parametrize("kind", DTYPES)
def test_named_choice_is_taken(kind: str) -> None:
    for name in names(kind):
        assert plan(64, 64, 64, kind, config=name)["config"] == name


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (16, 4096, 4096), (512, 512, 512), (8192, 14336, 4096), (7, 9, 65536)]
)
def test_choice_is_the_least_legal_estimate(kind: str, device: str, shape: tuple[int, int, int]) -> None:
    p = plan(*shape, kind, device=device)
    legal = [(e["estimate"]["total_us"], e["name"]) for e in p["candidates"] if e["estimate"] is not None]
    assert p["estimate"] is not None
    assert p["estimate"]["total_us"] == min(legal)[0]
    assert p["config"] in [name for us, name in legal if us == min(legal)[0]]


@pytest.mark.parametrize("kind", DTYPES)
def test_large_tiles_for_large_products_and_small_ones_for_small(kind: str) -> None:
    area = {c["name"]: c["tile_m"] * c["tile_n"] for c in _core.configs()}
    large, small = plan(8192, 8192, 8192, kind)["config"], plan(256, 256, 1024, kind)["config"]
    assert large is not None
    assert small is not None
    assert area[large] >= area[small]
    assert area[small] == min(area[name] for name in names(kind))


# ---- The cost model ----


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (16, 4096, 4096), (4096, 4096, 4096), (65536, 64, 64)])
def test_nothing_beats_the_physical_limit(kind: str, shape: tuple[int, int, int]) -> None:
    for entry in plan(*shape, kind)["candidates"]:
        assert entry["estimate"] is None or entry["estimate"]["total_us"] > entry["estimate"]["floor_us"] > 0


def test_large_products_come_near_it() -> None:
    p = plan(8192, 8192, 8192)
    assert p["estimate"] is not None
    assert p["estimate"]["floor_us"] / p["estimate"]["total_us"] > 0.8


def test_floor_of_a_weight_stream_is_its_bytes() -> None:
    p = plan(1, 14336, 4096)
    assert p["estimate"] is not None
    assert p["estimate"]["floor_us"] == pytest.approx(14336 * 4096 * 2 / 4.8e6, rel=1e-2)


def test_repeated_operands_are_counted_once() -> None:
    p = _core.plan(
        "bmk,bkn->bmn", (1, 1, 4096), (64, 4096, 64), "bfloat16", "bfloat16", "default", "", "h200"
    )
    assert p["estimate"] is not None
    bytes_ = 2 * (4096 + 64 * 4096 * 64 + 64 * 64)
    assert p["estimate"]["floor_us"] == pytest.approx(bytes_ / 4.8e6, rel=1e-6)


def test_waves_are_whole() -> None:
    """One tile beyond a full wave costs about another wave."""
    name = max((c for c in _core.configs() if c["math"] == "bf16"), key=lambda c: c["shared_bytes"])["name"]
    config = next(c for c in _core.configs() if c["name"] == name)

    def us(tiles: int) -> float:
        p = plan(tiles * config["tile_m"], config["tile_n"], 8192, config=name)
        assert p["estimate"] is not None
        assert p["estimate"]["tiles"] == tiles
        assert p["estimate"]["waves"] == pytest.approx(tiles / 132 / p["estimate"]["blocks_per_sm"])
        return p["estimate"]["total_us"]

    assert us(133) > 1.5 * us(132)
    assert us(264) == pytest.approx(us(133), rel=0.1)


def test_narrow_copies_cost() -> None:
    name = next(c["name"] for c in _core.configs() if c["math"] == "bf16" and c["any_alignment"])
    times = []
    for alignment in (16, 8, 4, 2):
        estimate = candidate(plan(4096, 4096, 4096, alignment=alignment), name)["estimate"]
        assert estimate is not None
        times.append(estimate["total_us"])
    assert times == sorted(times)
    assert times[-1] > times[0]


# ---- The build ----


def test_registrations_and_build() -> None:
    assert list(_core.registrations()) == ["jax_gemm_v1"]
    assert "xla._CUSTOM_CALL_TARGET" in repr(_core.registrations()["jax_gemm_v1"])
    assert _core.ffi_api_minor() == _core.build_info()["ffi_api_minor"] == 1
    assert set(_core.build_info()) == {"version", "architectures", "cuda_version", "ffi_api_minor"}


def test_absent_device_is_an_error_with_the_count() -> None:
    assert _core.device_count() >= 0
    with pytest.raises(ValueError, match="CUDA device 63"):
        _core.device_facts(63)
    with pytest.raises(ValueError, match="CUDA device -1"):
        _core.device_facts(-1)


def test_partial_chunks_need_any_alignment() -> None:
    name = next(c["name"] for c in _core.configs() if c["math"] == "bf16" and not c["any_alignment"])
    # A is read along K, B along N: a slice of aligned rows whose length is no multiple of 8 elements.
    assert candidate(plan(128, 4096, 4096), name)["illegal"] == ""
    assert "multiples of 16 bytes" in candidate(plan(128, 4096, 4100), name)["illegal"]
    assert "multiples of 16 bytes" in candidate(plan(128, 4100, 4096), name)["illegal"]
    assert candidate(plan(131, 4096, 4096), name)["illegal"] == ""  # M is contiguous in neither
