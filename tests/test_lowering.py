"""The program that XLA makes for an H200, on a machine that needs none.

Checked is what surrounds our call: no transposition, no copy, no broadcast, one command buffer.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_gemm import _ffi, dot_general, einsum, matmul, tensordot, vdot

H200 = (pathlib.Path(__file__).parent / "h200.txtpb").read_text()
PLUGINS = [name for name in ("jax_cuda13_plugin", "jax_cuda12_plugin") if importlib.util.find_spec(name)]

pytestmark = pytest.mark.skipif(not PLUGINS, reason="JAX's CUDA plugin is not installed")


def mesh(devices: int = 1, **options: Any) -> Mesh:
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology=f"1x{devices}x1")
    return topologies.make_mesh(topology, (devices,), ("x",), **options)


def compiled(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "bfloat16", **options: Any
) -> str:
    """Text of the optimised program."""
    placed = NamedSharding(mesh(), P())
    args = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=placed) for shape in shapes]
    return jax.jit(function).lower(*args).compile(**options).as_text()


def calls(program: str) -> list[str]:
    return re.findall(r'custom_call_target="(\w+)"', program)


def kernels(program: str) -> list[str]:
    """Operations of the entry computation that launch something other than our call."""
    entry = program[program.index("\nENTRY ") :]
    operations = re.findall(r"= \S+ ([\w-]+)\(", entry)
    return [name for name in operations if name not in ("parameter", "bitcast", "custom-call", "tuple")]


def contraction(program: str) -> str:
    return re.findall(r'contraction = "([^"]*)"', program)[0]


def same_contraction(left: str, right: str) -> bool:
    """Whether two specifications differ in the names of labels only."""
    names: dict[str, str] = {}
    renamed = ["".join(x if x in ",->" else names.setdefault(x, chr(len(names) + 97)) for x in left)]
    names = {}
    renamed.append("".join(x if x in ",->" else names.setdefault(x, chr(len(names) + 97)) for x in right))
    return renamed[0] == renamed[1]


T = jnp.matrix_transpose


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (matmul, [(96, 64), (64, 32)], "mk,kn->mn"),
        (lambda a, b: matmul(a.T, b), [(64, 96), (64, 32)], "km,kn->mn"),
        (lambda a, b: matmul(a, b.T), [(96, 64), (32, 64)], "mk,nk->mn"),
        (lambda a, b: matmul(a.T, b.T), [(64, 96), (32, 64)], "km,nk->mn"),
        (lambda a, b: matmul(a.T.T.T, b), [(64, 96), (64, 32)], "km,kn->mn"),
        (lambda a, b: matmul(T(a), T(b)), [(5, 64, 96), (5, 32, 64)], "zkm,znk->zmn"),
        (lambda a, b: matmul(jnp.swapaxes(a, 0, 1), b), [(96, 5, 64), (5, 64, 32)], "mzk,zkn->zmn"),
        (lambda a, b: matmul(a, b.T), [(64,), (32, 64)], "k,nk->n"),
    ],
)  # fmt: skip
def test_c07_transpositions_become_labels(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], expected: str, dtype: str
) -> None:
    program = compiled(function, *shapes, dtype=dtype)
    assert calls(program) == [_ffi.TARGET]
    assert kernels(program) == []
    assert same_contraction(contraction(program), expected)


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((4, 1, 2, 3), (5, 3, 2)),
        ((8, 16, 32), (32, 64)),
        ((16, 32), (8, 32, 64)),
        ((6, 4, 16, 32), (4, 32, 8)),
        ((1, 16, 32), (7, 32, 8)),
        ((3,), (5, 3, 2)),
        ((5, 2, 3), (3,)),
    ],
)
def test_c08_broadcasting_materialises_nothing(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    program = compiled(matmul, a_shape, b_shape)
    assert calls(program) == [_ffi.TARGET]
    assert kernels(program) == []


def test_transposed_broadcast_operand() -> None:
    program = compiled(lambda a, b: matmul(T(a), b), (4, 1, 64, 96), (5, 64, 32))
    assert kernels(program) == []


def test_c07_an_operand_that_cannot_be_read_in_place() -> None:
    program = compiled(
        lambda u, v: matmul(u.transpose(1, 2, 0), v.transpose(2, 1, 0)), (64, 3, 96), (32, 64, 3)
    )
    assert calls(program) == [_ffi.TARGET]
    assert len(kernels(program)) == 1  # v alone: neither of its matrix axes is contiguous


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("subscripts", "a_shape", "b_shape"),
    [
        ("bhqd,bhkd->bhqk", (2, 4, 64, 32), (2, 4, 48, 32)),
        ("bmhd,bnhd->bhmn", (2, 64, 4, 32), (2, 48, 4, 32)),
        ("bhmn,bnhd->bmhd", (2, 4, 64, 48), (2, 48, 4, 32)),
        ("...hqk,...khd->...qhd", (2, 4, 64, 48), (2, 48, 4, 32)),
        ("bhgqk,bkhd->bqhgd", (2, 4, 2, 16, 24), (2, 24, 4, 32)),
        ("gecd,edf->gecf", (2, 4, 16, 32), (4, 32, 64)),
        ("xmk,nk->xnm", (3, 16, 32), (24, 32)),
        ("mk,kn->nm", (64, 32), (32, 48)),
    ],
)
def test_c07_einsum(subscripts: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    program = compiled(lambda a, b: einsum(subscripts, a, b), a_shape, b_shape, dtype=dtype)
    assert calls(program) == [_ffi.TARGET]
    assert kernels(program) == []


@pytest.mark.parametrize(
    ("function", "shapes", "copies"),
    [
        (lambda a, b: einsum("kbm,nkb->bmn", a, b), [(64, 3, 96), (32, 64, 3)], 1),  # b, as in matmul
        (lambda a, b: jnp.einsum("bmhd,bnhd->bhmn", a, b, _dot_general=dot_general),
         [(2, 64, 4, 32), (2, 48, 4, 32)], 0),
        (tensordot, [(8, 16, 32), (16, 32, 64)], 0),
        (lambda a, b: tensordot(a, b, (-1, -1)), [(4, 16, 32), (64, 32)], 0),
        (lambda a, b: tensordot(a, b, 1), [(4, 16, 32), (32, 64)], 0),
        (lambda a, b: tensordot(a, b, ([1, 2], [1, 0])), [(8, 16, 32), (32, 16, 64)], 1),  # K in two orders
        (lambda a, b: dot_general(a, b, (((2, 3), (0, 1)), ((), ()))), [(4, 16, 8, 32), (8, 32, 64)], 0),
        (vdot, [(16, 32), (16, 32)], 0),
    ],
)  # fmt: skip
def test_c07_contractions(function: Callable[..., Any], shapes: list[tuple[int, ...]], copies: int) -> None:
    program = compiled(function, *shapes)
    assert calls(program) == [_ffi.TARGET]
    assert len(kernels(program)) == copies


def test_products_without_a_sum_are_left_to_xla() -> None:
    assert _ffi.TARGET not in calls(compiled(lambda a, b: einsum("i,j->ij", a, b), (32,), (48,)))


def test_interleaved_broadcasts_take_the_canonical_form() -> None:
    program = compiled(matmul, (2, 1, 2, 1, 2, 1, 2, 1, 8, 16), (1, 2, 1, 2, 1, 2, 1, 2, 16, 8))
    assert calls(program) == [_ffi.TARGET]
    assert contraction(program).count(",") == 1


def test_a_transposition_that_is_used_elsewhere_too() -> None:
    program = compiled(lambda a, b: (matmul(a.T, b), a.T + 1), (64, 96), (64, 32))
    assert same_contraction(contraction(program), "km,kn->mn")


@pytest.mark.parametrize(
    ("precision", "expected"), [("default", "default"), ("high", "default"), ("highest", "highest")]
)
def test_attributes(precision: str, expected: str) -> None:
    config = _ffi.core().plan("mk,kn->mn", (64, 64), (64, 64), "float32", "float32", expected, "", "h200")[
        "config"
    ]
    program = compiled(
        lambda a, b: matmul(a, b, precision=precision, config=config), (64, 64), (64, 64), dtype="float32"
    )
    assert f'precision = "{expected}"' in program
    assert f'config = "{config}"' in program


def test_other_types_go_to_xla() -> None:
    assert _ffi.TARGET not in calls(compiled(matmul, (64, 64), (64, 64), dtype="int32"))


def test_command_buffer(tmp_path: pathlib.Path) -> None:
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(6):
            x = jnp.tanh(matmul(x, w))
        return x

    compiled(chain, (64, 64), (64, 64), compiler_options={"xla_dump_to": str(tmp_path)})
    (thunks,) = tmp_path.glob("*.thunk_sequence_after_thunk_passes.txt")
    assert "kCommandBuffer" in thunks.read_text()


def test_forward_and_backward_of_an_mlp(tmp_path: pathlib.Path) -> None:
    """Six products, no transposition and no copy, in one command buffer."""

    def loss(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        up, down = weights
        return matmul(jax.nn.gelu(matmul(x, up)), down).astype(jnp.float32).sum()

    def step(x: jax.Array, up: jax.Array, down: jax.Array) -> Any:
        return jax.grad(lambda x, w: loss(w, x) ** 2, (0, 1))(x, (up, down))

    program = compiled(
        step, (512, 256), (256, 1024), (1024, 256), compiler_options={"xla_dump_to": str(tmp_path)}
    )
    assert calls(program) == [_ffi.TARGET] * 6
    assert not {"transpose", "copy", "dot"} & set(kernels(program))
    assert "fused_transpose" not in program
    (thunks,) = tmp_path.glob("*.thunk_sequence_after_thunk_passes.txt")
    assert thunks.read_text().count("kCommandBuffer") == 1


def test_slices_of_stacked_weights_are_not_copied() -> None:
    def layers(x: jax.Array, stacked: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (matmul(x, w), None), x, stacked)[0]

    program = compiled(layers, (64, 64), (4, 64, 64))
    fusions = re.findall(
        r"^%dynamic-slice-fusion.*?^}|^%dynamic_slice_fusion.*?^}", program, re.MULTILINE | re.DOTALL
    )
    assert calls(program) == [_ffi.TARGET]
    assert any(_ffi.TARGET in fusion and "slice(" in fusion for fusion in fusions)


# ---- several devices ----


def test_a_manual_mesh_calls_the_kernel_on_each_device() -> None:
    two = mesh(2)
    function = jax.shard_map(matmul, mesh=two, in_specs=(P("x"), P("x")), out_specs=P("x"))
    placed = NamedSharding(two, P("x"))
    args = [jax.ShapeDtypeStruct((4, 64, 64), jnp.bfloat16, sharding=placed)] * 2
    program = jax.jit(function).lower(*args).compile().as_text()
    assert calls(program) == [_ffi.TARGET]
    assert "bf16[2,64,64]" in program


# ---- export ----


def test_an_export_for_cpu_and_cuda_holds_both() -> None:
    def exported(function: Callable[..., Any], *shapes: tuple[Any, ...]) -> export.Exported:
        args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
        checks = [export.DisabledSafetyCheck.custom_call(_ffi.TARGET)]
        return export.export(jax.jit(function), platforms=("cpu", "cuda"), disabled_checks=checks)(*args)

    for artifact in (
        exported(lambda a, b: matmul(a.T, b), (64, 96), (64, 32)),
        exported(lambda a, b: matmul(a.T, b), (64, *export.symbolic_shape("n")), (64, 32)),
    ):
        assert _ffi.TARGET in artifact.mlir_module()
        out = artifact.call(jnp.ones((64, 96), "bfloat16"), jnp.ones((64, 32), "bfloat16"))
        assert out.shape == (96, 32)
        assert (out == 64).all()


def test_an_export_of_unknown_sizes_transposes_what_no_strides_express() -> None:
    scope = export.SymbolicScope()
    args = [
        jax.ShapeDtypeStruct(export.symbolic_shape(sizes, scope=scope), jnp.bfloat16)
        for sizes in ("k, z, m", "n, k, z")
    ]
    artifact = export.export(
        jax.jit(lambda a, b: einsum("kbm,nkb->bmn", a, b)),
        platforms=("cuda",),
        disabled_checks=[export.DisabledSafetyCheck.custom_call(_ffi.TARGET)],
    )(*args)
    assert same_contraction(contraction(artifact.mlir_module()), "zmk,zkn->zmn")


# ---- where the kernels cannot be used ----


def test_c24_a_newer_ffi_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ffi, "runtime_api_minor", lambda: -1)
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *args, **kwargs: pytest.fail("registered"))
    assert "upgrade jaxlib" in _ffi.register()


def test_unusable_kernels_fall_back_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ffi, "unavailable", lambda: "of this test")
    _ffi.warn_fallback.cache_clear()
    with pytest.warns(RuntimeWarning, match="products go to XLA because of this test"):
        program = compiled(lambda a, b: matmul(a, b) + 1, (64, 64), (64, 64))
    assert _ffi.TARGET not in calls(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(lambda a, b: matmul(a, b) + 2, (64, 64), (64, 64))
