"""`install` changes what products lower to on CUDA, and nothing else; `report` says the same beforehand."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.extend.core.primitives import dot_general_p, transpose_p
from jax.interpreters import mlir
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_lowering import PLUGINS, calls, compiled, contraction, kernels, mesh, same_contraction

import jax_gemm
from jax_gemm import _core, _ffi, _install, matmul

deviceless = pytest.mark.skipif(not PLUGINS, reason="JAX's CUDA plugin is not installed")


@pytest.fixture(autouse=True)
def _uninstalled() -> Iterator[None]:
    yield
    jax_gemm.uninstall()
    assert not _install._holders
    assert _install._uncacheable().isdisjoint((dot_general_p, transpose_p))


def lowered(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "bfloat16", platform: str = "cuda"
) -> str:
    """Text of the program before XLA, whose device is not known."""
    args = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes]
    return jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


SQUARES = ((64, 64), (64, 64))


# ---- what becomes ours ----


@deviceless
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (jnp.dot, [(96, 64), (64, 32)], "mk,kn->mn"),
        (lambda a, b: a.T @ b, [(64, 96), (64, 32)], "km,kn->mn"),
        (lambda a, b: a @ b.T, [(96, 64), (32, 64)], "mk,nk->mn"),
        (lambda a, b: jnp.einsum("bhqd,bhkd->bhqk", a, b), [(2, 3, 64, 16)] * 2, "bhqd,bhkd->bhqk"),
        (lambda a, b: jnp.tensordot(a, b, 2), [(32, 8, 16), (8, 16, 64)], "mkl,kln->mn"),
        (jax.vmap(dot), [(5, 32, 64), (5, 64, 16)], "zmk,zkn->zmn"),
        (jax.vmap(dot, (None, 0), 0), [(32, 64), (5, 64, 16)], "mk,zkn->zmn"),
        (lambda a, b: (a.T @ b).T, [(64, 96), (64, 32)], "km,kn->nm"),
        (lambda a, b: jnp.einsum("bshd,btd->sbht", a, b), [(2, 8, 3, 16), (2, 64, 16)], "btd,bshd->sbht"),
    ],
)
def test_products_of_jax(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], expected: str, dtype: str
) -> None:
    assert _ffi.TARGET not in calls(compiled(function, *shapes, dtype=dtype))
    with jax_gemm.installed(always=True):
        program = compiled(function, *shapes, dtype=dtype)
    assert calls(program) == [_ffi.TARGET]
    assert same_contraction(contraction(program), expected)
    assert kernels(program) == []
    assert _ffi.TARGET not in calls(compiled(function, *shapes, dtype=dtype))


def mlp(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w1) @ w2))


@deviceless
def test_gradients_transpose_nothing() -> None:
    with jax_gemm.installed(always=True):
        program = compiled(jax.grad(mlp, (0, 1, 2)), (64, 32), (32, 128), (128, 16))
    assert calls(program) == [_ffi.TARGET] * 6
    assert " dot(" not in program
    assert " transpose(" not in program
    assert " copy(" not in program


@deviceless
@pytest.mark.parametrize(
    ("function", "expected", "others"),
    [
        # In the order that is asked for first.
        (lambda p: (p.transpose(2, 0, 1), p), "zmk,zkn->nzm", 1),
        (lambda p: (p, p.transpose(2, 0, 1)), "zmk,zkn->nzm", 1),
        (lambda p: (jnp.negative(p), p.transpose(2, 0, 1)), "zmk,zkn->zmn", 2),
        (lambda p: p.transpose(1, 2, 0), "zmk,zkn->zmn", 1),  # no kernel writes rows along the batch
    ],
)
def test_a_product_is_computed_once(function: Callable[..., Any], expected: str, others: int) -> None:
    with jax_gemm.installed(always=True):
        program = compiled(lambda a, b: function(a @ b), (5, 32, 64), (5, 64, 16))
    assert calls(program) == [_ffi.TARGET]
    assert same_contraction(contraction(program), expected)
    assert len(kernels(program)) == others


@pytest.mark.parametrize("product", [matmul, lambda a, b: jnp.matmul(a, b).transpose(2, 0, 1)])
def test_transpositions_of_transpositions(product: Callable[..., Any]) -> None:
    def once(a: jax.Array, b: jax.Array) -> jax.Array:
        return product(a, b)

    def thrice(a: jax.Array, b: jax.Array) -> jax.Array:
        return product(a, b).transpose(0, 2, 1).transpose(1, 0, 2)

    with jax_gemm.installed(always=True):
        texts = [lowered(function, (16, 16, 16), (16, 16, 16)) for function in (once, thrice)]
    assert contraction(texts[0]) == contraction(texts[1])
    assert texts[1].count("stablehlo.transpose") == texts[0].count("stablehlo.transpose") + 2


@deviceless
def test_a_transposed_product_is_read_in_place() -> None:
    def function(x: jax.Array, w: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        product = x @ w
        return product.T @ v, product @ v.T

    with jax_gemm.installed(always=True):
        program = compiled(function, (64, 32), (32, 128), (64, 128))
    assert calls(program) == [_ffi.TARGET] * 3
    assert kernels(program) == []


@pytest.mark.gpu
def test_values_on_the_gpu() -> None:
    def function(x: jax.Array, w: jax.Array) -> Any:
        product = jnp.einsum("bsd,dh->bhs", x, w)
        return product, product.T, jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)

    keys = jax.random.split(jax.random.key(0))
    args = [jax.random.normal(key, shape) for key, shape in zip(keys, [(3, 40, 64), (64, 24)], strict=True)]
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(function)(*args)
        with jax_gemm.installed(always=True):
            assert _ffi.TARGET in jax.jit(function).lower(*args).as_text()
            found = jax.jit(function)(*args)
    for out, same in zip(found, expected, strict=True):
        np.testing.assert_allclose(out, same, rtol=1e-5, atol=1e-4)


def test_remat_policies_see_dot_general() -> None:
    def products(policy: Any) -> int:
        loss = jax.checkpoint(mlp, policy=policy)
        return lowered(jax.value_and_grad(loss), (64, 32), (32, 128), (128, 16)).count(_ffi.TARGET)

    jax_gemm.install(always=True)
    everything = products(jax.checkpoint_policies.nothing_saveable)
    assert 0 < products(jax.checkpoint_policies.dots_saveable) < everything


@deviceless
def test_by_default_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.dot(a, b, precision="highest")

    large = ((4096, 4096), (4096, 4096))
    jax_gemm.install()
    assert _ffi.TARGET in calls(compiled(full, *large, dtype="float32"))
    assert _ffi.TARGET not in calls(compiled(full, *SQUARES, dtype="float32"))
    assert _ffi.TARGET not in calls(compiled(dot, *large, dtype="float32"))
    assert _ffi.TARGET not in calls(compiled(dot, *large))
    monkeypatch.setattr(_install, "_capability", lambda ctx: None)
    assert _ffi.TARGET not in lowered(full, *large, dtype="float32")
    jax_gemm.install(always=True)
    for program in (lowered(full, *large, dtype="float32"), lowered(dot, *SQUARES)):
        assert _ffi.TARGET in program


@pytest.mark.parametrize(("capability", "taken"), [((7, 5), False), ((8, 0), True), (None, True)])
def test_devices_without_kernels(
    capability: tuple[int, int] | None, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_install, "_capability", lambda ctx: capability)
    jax_gemm.install(always=True)
    assert (_ffi.TARGET in lowered(lambda a, b: a @ b, *SQUARES)) == taken


# ---- what stays as it was ----


@pytest.mark.parametrize(
    ("dtypes", "options"),
    [
        (("int8", "int8"), {"preferred_element_type": jnp.int32}),
        (("complex64", "complex64"), {}),
        (("float64", "float64"), {}),
        (("float8_e4m3fn", "float8_e4m3fn"), {"preferred_element_type": jnp.float32}),
        (("bfloat16", "float32"), {"preferred_element_type": jnp.float32}),
        (("float16", "float16"), {"precision": lax.DotAlgorithmPreset.F16_F16_F16}),
    ],
)
def test_other_types(dtypes: tuple[str, str], options: dict[str, Any]) -> None:
    def function(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot(a, b, **options)

    with jax.enable_x64("float64" in dtypes):
        args = [jax.ShapeDtypeStruct((64, 64), jnp.dtype(dtype)) for dtype in dtypes]
        texts = []
        for context in (jax_gemm.installed(), jax_gemm.installed(always=True)):
            traced = jax.jit(function).trace(*args)
            texts.append(traced.lower(lowering_platforms=("cuda",)).as_text())
            with context:
                texts.append(traced.lower(lowering_platforms=("cuda",)).as_text())
    assert len(set(texts)) == 1
    assert "dot_general" in texts[0]


def test_other_platforms() -> None:
    texts = [lowered(dot, *SQUARES, platform=platform) for platform in ("cpu", "rocm", "tpu")]
    jax_gemm.install(always=True)
    assert texts == [lowered(dot, *SQUARES, platform=platform) for platform in ("cpu", "rocm", "tpu")]
    # The rule of JAX for CPUs, not its general one.
    with pytest.raises(ValueError, match="not supported by dot_general on CPU"):
        lowered(
            lambda a, b: lax.dot(a, b, precision=lax.DotAlgorithmPreset.TF32_TF32_F32),
            *SQUARES, dtype="float32", platform="cpu",
        )  # fmt: skip


def test_values_on_the_cpu() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(8, 4), (4, 6), (6, 2)]
    with jax.default_device(jax.devices("cpu")[0]):
        args = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
        expected = jax.jit(jax.grad(mlp, (0, 1, 2)))(*args)
        with jax_gemm.installed(always=True):
            found = jax.jit(jax.grad(mlp, (0, 1, 2)))(*args)
    for out, same in zip(found, expected, strict=True):
        np.testing.assert_array_equal(out, same)


@deviceless
def test_meshes() -> None:
    two = mesh(2)

    def program(function: Callable[..., Any], spec: P, place: Any = two) -> str:
        args = [jax.ShapeDtypeStruct((4, 64, 64), jnp.bfloat16, sharding=NamedSharding(place, spec))] * 2
        return jax.jit(function).lower(*args).compile().as_text()

    jax_gemm.install(always=True)
    automatic = program(dot, P("x"))
    assert calls(automatic) == [_ffi.TARGET]
    assert "all-gather" not in automatic
    manual = jax.shard_map(dot, mesh=two, in_specs=(P("x"), P("x")), out_specs=P("x"))
    assert calls(program(manual, P("x"))) == [_ffi.TARGET]
    for devices in (two.devices, mesh(1).devices):
        explicit = Mesh(devices, ("x",), axis_types=(AxisType.Explicit,))
        with jax.set_mesh(explicit):
            assert calls(program(dot, P("x"), explicit)) == [_ffi.TARGET]
            assert calls(program(dot, P(), explicit)) == [_ffi.TARGET]


@pytest.mark.parametrize(
    ("function", "kernel"), [(lambda a, b: a.T @ b, 0), (lambda a, b: matmul(a.T, b), 1)]
)
def test_exports_for_several_platforms(function: Callable[..., Any], kernel: int) -> None:
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 96), (64, 32))]
    checks = [export.DisabledSafetyCheck.custom_call(_ffi.TARGET)]
    jax_gemm.install(always=True)
    artifact = export.export(jax.jit(function), platforms=("cpu", "cuda"), disabled_checks=checks)(*args)
    assert artifact.mlir_module().count(f"@{_ffi.TARGET}") == kernel
    out = artifact.call(jnp.ones((64, 96), "bfloat16"), jnp.ones((64, 32), "bfloat16"))
    assert (out == 64).all()


def test_symbolic_sizes() -> None:
    (rows,) = export.symbolic_shape("n")
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, 64), (64, 32))]
    jax_gemm.install(always=True)
    assert _ffi.TARGET not in export.export(jax.jit(dot), platforms=("cuda",))(*args).mlir_module()


# ---- installing and uninstalling ----


def rules() -> tuple[Any, ...]:
    tables = (mlir._lowerings, *mlir._platform_specific_lowerings.values())
    return tuple(table.get(primitive) for table in tables for primitive in (dot_general_p, transpose_p))


def test_uninstall_restores_everything() -> None:
    before, text = rules(), lowered(dot, *SQUARES)
    jax_gemm.uninstall()
    assert rules() == before
    for _ in range(2):
        jax_gemm.install(always=True)
        jax_gemm.install(always=True)
        assert rules() != before
        assert _ffi.TARGET in lowered(dot, *SQUARES)
        jax_gemm.uninstall()
        assert rules() == before
        assert lowered(dot, *SQUARES) == text


def test_contexts_nest() -> None:
    def ours() -> bool:
        return _ffi.TARGET in lowered(dot, *SQUARES)

    before = rules()
    with jax_gemm.installed(always=True):
        assert ours()
        with jax_gemm.installed():
            assert not ours()
            with contextlib.suppress(ZeroDivisionError), jax_gemm.installed(always=True):
                assert ours()
                raise ZeroDivisionError
            assert not ours()
        assert ours()
        jax_gemm.uninstall()
        assert ours()
        jax_gemm.install(always=True)
    assert ours()
    with jax_gemm.installed():
        jax_gemm.uninstall()
        assert rules() != before
    assert rules() == before


def test_threads() -> None:
    def elsewhere() -> bool:
        found = []
        thread = threading.Thread(target=lambda: found.append(_ffi.TARGET in lowered(dot, *SQUARES)))
        thread.start()
        thread.join()
        return found[0]

    with jax_gemm.installed(always=True):
        assert not elsewhere()
    jax_gemm.install(always=True)
    assert elsewhere()


def test_compiled_programs_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    why_not = _install._why_not
    monkeypatch.setattr(_install, "_why_not", lambda *args: modes.append(args[1]) or why_not(*args))
    function, eager = jax.jit(dot), functools.partial(lax.dot, precision="high")
    x = jnp.ones((4, 4))
    for call in (function, eager):
        modes.clear()
        call(x, x)
        jax_gemm.install()
        call(x, x)
        call(x, x)
        assert modes == ["measured"]
        jax_gemm.install(always=True)
        call(x, x)
        assert modes == ["measured", "always"]
        jax_gemm.uninstall()
        call(x, x)
        with jax_gemm.installed():
            call(x, x)
        assert modes == ["measured", "always"]  # all four are compiled already


def test_what_was_traced_before_is_lowered_after() -> None:
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in SQUARES]
    traced = jax.jit(dot).trace(*args)
    before = traced.lower(lowering_platforms=("cuda",)).as_text()
    jax_gemm.install(always=True)
    assert _ffi.TARGET in traced.lower(lowering_platforms=("cuda",)).as_text()
    jax_gemm.uninstall()
    assert traced.lower(lowering_platforms=("cuda",)).as_text() == before


def test_a_jax_with_other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rules()
    with monkeypatch.context() as patched:
        patched.delattr(mlir, "_platform_specific_lowerings")
        with pytest.raises(RuntimeError, match=r"keeps its lowering rules elsewhere.*call jax_gemm.matmul"):
            jax_gemm.install()
    assert rules() == before
    assert not _install._globally


# ---- report ----


def test_report() -> None:
    def loss(stacked: jax.Array, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ w), None

        x, _ = lax.scan(layer, x, stacked)
        constant = lax.stop_gradient(x)
        return jnp.sum(x * jnp.sum(matmul(constant.T, constant)))

    stacked = jax.ShapeDtypeStruct((3, 128, 128), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16)
    found = jax_gemm.report(jax.grad(loss), stacked, x, device="h200")
    scanned, ours, *backward = found.lines

    assert (scanned.primitive, scanned.count) == ("dot_general", 3)
    assert (scanned.a_shape, scanned.b_shape) == ((64, 128), (128, 128))
    assert "wgmma" in scanned.reason
    plan = _core.plan("mk,kn->mn", (64, 128), (128, 128), "bfloat16", "bfloat16", "default", "", "h200")
    assert scanned.config == plan["config"]

    assert (ours.primitive, ours.count, ours.reason) == ("jax_gemm", 1, "")
    assert same_contraction(ours.contraction, "km,kn->mn")  # under the transposition
    assert [line.count for line in backward] == [3] * len(backward)

    for line in found.lines:
        assert "test_install.py" in line.source
    text = str(found)
    assert text.startswith(f"{len(found.lines)} products on h200: 1 by our kernels after install(), ")
    assert text.count("by install(always=True), else goes to XLA") == len(found.lines) - 1
    assert "3 x dot_general" in text


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, v: (x @ w).T @ v,
        lambda x, w, v: (x @ w @ v.T, (x @ w).T),
        lambda x, w, v: jnp.einsum("mk,kn,mj->jn", x, w, v),
        lambda x, w, v: (lambda p: (p.T @ v, p @ v.T))(x @ w),
        lambda x, w, v: jax.grad(mlp, (0, 1, 2))(x, w, v.T),
    ],
)
def test_report_is_what_is_lowered(function: Callable[..., Any]) -> None:
    shapes = ((64, 32), (32, 128), (64, 128))
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    lines = jax_gemm.report(function, *args, device="h200").lines
    with jax_gemm.installed(always=True):
        text = lowered(function, *shapes)
    assert [line.contraction for line in lines] == re.findall(r'contraction = "([^"]*)"', text)


def test_report_looks_into_bodies() -> None:
    @jax.custom_vjp
    def custom(x: jax.Array) -> jax.Array:
        return x @ x

    custom.defvjp(lambda x: (custom(x), x), lambda x, g: (g @ x,))
    cpu = jax.make_mesh((2,), ("x",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])

    def function(x: jax.Array) -> jax.Array:
        y = lax.cond(x[0, 0] > 0, dot, lambda a, b: b, x, x)
        y = lax.fori_loop(0, x[0, 0].astype(int), lambda _, y: y @ x, y)
        y = jax.checkpoint(lambda y: y @ y)(custom(jax.jit(jnp.dot)(y, y)))
        return jax.shard_map(lambda y: y.T @ y, mesh=cpu, in_specs=P("x"), out_specs=P("x"))(y)

    lines = jax_gemm.report(function, jnp.ones((64, 64)), device="a100").lines
    assert [line.count for line in lines] == [1, None, 1, 1, 1, 1]
    assert lines[-1].a_shape == (32, 64)
    assert all(line.config and "8.0 is not measured" in line.reason for line in lines)


def test_report_of_what_install_takes() -> None:
    large = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    (line,) = jax_gemm.report(
        functools.partial(jnp.dot, precision="highest"), large, large, device="h200"
    ).lines
    assert line.config
    assert not line.reason


@pytest.mark.parametrize(
    ("dtypes", "shape", "options", "reason"),
    [
        (("int8", "int8"), (64, 64), {"preferred_element_type": jnp.int32}, "no kernel multiplies int8"),
        (("bfloat16", "float32"), (64, 64), {"preferred_element_type": jnp.float32}, "of different types"),
        (("bfloat16", "bfloat16"), (0, 0), {}, "the result is empty"),
    ],
)
def test_report_of_what_no_kernel_computes(
    dtypes: tuple[str, str], shape: tuple[int, int], options: dict[str, Any], reason: str
) -> None:
    args = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for dtype in dtypes]
    found = jax_gemm.report(functools.partial(lax.dot, **options), *args)
    (line,) = found.lines
    assert reason in line.reason
    assert line.config is None
    assert f"goes to XLA: {line.reason}" in str(found)


def test_report_of_a_device() -> None:
    with pytest.raises(ValueError, match=r"device is an ordinal or one of .*h200.*, not 'h999'"):
        jax_gemm.report(dot, jnp.ones((2, 2)), jnp.ones((2, 2)), device="h999")
    keyword = jax_gemm.report(lambda a, *, b: a @ b, jnp.ones((64, 64)), b=jnp.ones((64, 64)), device="a100")
    assert keyword.device == "a100"
    assert len(keyword.lines) == 1


@pytest.mark.parametrize("types", [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float32")])
def test_an_algorithm_that_rounds_its_operands(types: tuple[str, str]) -> None:
    """As XLA: BF16_BF16_F32 is of bfloat16 operands, whatever type they come in."""
    args = [jax.ShapeDtypeStruct((64, 64), jnp.dtype(dtype)) for dtype in types]

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot_general(
            a, b, (((1,), (0,)), ((), ())), lax.DotAlgorithmPreset.BF16_BF16_F32, jnp.float32
        )

    def program() -> str:
        return jax.jit(product).trace(*args).lower(lowering_platforms=("cuda",)).as_text()

    assert _ffi.TARGET not in program()
    jax_gemm.install(always=True)
    text = program()
    assert text.count(f"@{_ffi.TARGET}") == 1
    assert f"@{_ffi.TARGET}" in next(
        line for line in text.splitlines() if "(tensor<64x64xbf16>, tensor<64x64xbf16>)" in line
    )
    (line,) = jax_gemm.report(product, *args).lines
    assert "_bf16_" in str(line.config)


@pytest.mark.parametrize("shapes", [((1, 64), (64, 64)), ((64, 64), (64,)), ((4, 4), (4, 4))])
def test_thin_and_tiny_products_are_left_to_fusions(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Of one row, of one column, and too small for XLA to call a library; `report` says the same."""
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    jax_gemm.install(always=True)
    text = jax.jit(jnp.matmul).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert _ffi.TARGET not in text
    found = jax_gemm.report(jnp.matmul, *args)
    assert found.lines[0].config is None
    assert "fuses it with its neighbours" in found.lines[0].reason
    assert "0 after install(always=True)" in str(found)
