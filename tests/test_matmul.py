"""`matmul` against a float64 oracle, on whatever backend there is.

Integers are small, so that results are exact and compared bit for bit. A test named after a C number stands
for a kind of input on which such libraries have failed.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from oracle import KERNEL_DTYPES, KERNEL_PRODUCTS, assert_equal, integers, primitives, product

import jax_gemm
from jax_gemm import matmul

# ---- shapes ----

BROADCASTS = [
    ((1, 2, 3), (4, 3, 2)),
    ((4, 1, 2, 3), (5, 3, 2)),
    ((0, 2, 3), (1, 3, 2)),
    ((3,), (5, 3, 2)),
    ((5, 2, 3), (3,)),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 2)),
    ((1, 1, 2, 3), (1, 3, 4)),
    ((4, 2, 3), (3, 5)),
    ((2, 3), (4, 3, 5)),
    ((6, 4, 2, 3), (4, 3, 5)),
    ((6, 1, 2, 3), (6, 4, 3, 5)),
    ((2, 1, 3, 1, 2, 3), (1, 4, 1, 5, 3, 2)),
    ((2, 1, 2, 1, 2, 1, 2, 1, 3, 4), (1, 2, 1, 2, 1, 2, 1, 2, 4, 5)),
]


@pytest.mark.parametrize(("a_shape", "b_shape"), BROADCASTS)
@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_c08_broadcasting(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    a, b = integers(a_shape, dtype), integers(b_shape, dtype, seed=1)
    for function in (matmul, jax.jit(matmul)):
        assert_equal(function(a, b), product(a, b, dtype))
    assert "broadcast_in_dim" not in primitives(matmul, a, b)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_c08_any_broadcast(data: st.DataObject) -> None:
    out = data.draw(st.lists(st.integers(0, 3), max_size=4))
    m, n, k = data.draw(st.tuples(*[st.integers(0, 4)] * 3))

    def batch() -> tuple[int, ...]:
        sizes = [1 if data.draw(st.booleans()) else size for size in out]
        return tuple(sizes[data.draw(st.integers(0, len(sizes))) :])

    a = integers((*batch(), m, k), "bfloat16")
    b = integers((*batch(), k, n), "bfloat16", seed=1)
    assert_equal(matmul(a, b), product(a, b, "bfloat16"))


def test_c08_numpy_operands() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_equal(matmul(a, a.T), product(a, a.T, "float32"))


@pytest.mark.parametrize(("operands", "result", "precision"), KERNEL_PRODUCTS)
@pytest.mark.parametrize("k", [1, 17, 64, 129])
def test_c05_unaligned_sizes(operands: str, result: str, precision: str, k: int) -> None:
    check_grid([1, 7, 16, 33, 65], k, operands, result, precision)


@pytest.mark.gpu
@pytest.mark.parametrize(("operands", "result", "precision"), KERNEL_PRODUCTS)
@pytest.mark.parametrize("k", [1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 127, 129])
def test_c05_every_unaligned_size(operands: str, result: str, precision: str, k: int) -> None:
    check_grid([1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 127, 129], k, operands, result, precision)


def check_grid(sizes: list[int], k: int, operands: str, result: str, precision: str) -> None:
    """All M and N of `sizes`, in one program."""
    lhs = [integers((m, k), operands) for m in sizes]
    rhs = [integers((k, n), operands, seed=1) for n in sizes]

    @jax.jit
    def products(lhs: list[jax.Array], rhs: list[jax.Array]) -> list[jax.Array]:
        pairs = itertools.product(lhs, rhs)
        return [matmul(a, b, precision=precision, preferred_element_type=result) for a, b in pairs]

    for (a, b), out in zip(itertools.product(lhs, rhs), products(lhs, rhs), strict=True):
        assert_equal(out, product(a, b, result))


@pytest.mark.parametrize("shape", [(1, 105, 107), (133, 576, 7168), (64, 24, 40), (130, 130, 9)])
@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_c05_reported_sizes(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    a, b = integers((m, k), dtype), integers((k, n), dtype, seed=1)
    assert_equal(matmul(a, b, precision="highest"), product(a, b, dtype))


@pytest.mark.parametrize("dtype", [*KERNEL_DTYPES, "int8"])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"), [((3, 0), (0, 4)), ((2, 0), (0,)), ((0,), (0,)), ((2, 3, 0), (0, 5))]
)
def test_c01_no_terms(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    out = jax.jit(matmul)(jnp.zeros(a_shape, dtype), jnp.zeros(b_shape, dtype))
    assert_equal(out, product(np.zeros(a_shape), np.zeros(b_shape), dtype))


@pytest.mark.parametrize("dtype", [*KERNEL_DTYPES, "int8"])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((0, 5), (5, 4)), ((5, 4), (4, 0)), ((0, 2, 3), (1, 3, 2)), ((0,), (0, 4)), ((0, 0), (0, 0))],
)
def test_c02_empty(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    out = jax.jit(matmul)(jnp.ones(a_shape, dtype), jnp.ones(b_shape, dtype))
    assert_equal(out, product(np.ones(a_shape), np.ones(b_shape), dtype))


# ---- values ----


@pytest.mark.parametrize(("operands", "result", "precision"), KERNEL_PRODUCTS)
def test_c03_nan_and_inf_stay_in_their_row_and_column(operands: str, result: str, precision: str) -> None:
    options: dict[str, Any] = {"precision": precision, "preferred_element_type": result}
    assert jnp.isnan(
        matmul(jnp.asarray([[jnp.inf, 1]], operands), jnp.asarray([[0], [1]], operands), **options)
    ).all()
    a, b = jnp.ones((70, 65), operands), jnp.ones((65, 67), operands)
    by_row = np.isnan(np.asarray(matmul(a.at[3, 64].set(jnp.nan), b, **options), np.float32))
    by_column = np.isnan(np.asarray(matmul(a, b.at[64, 5].set(jnp.nan), **options), np.float32))
    assert by_row[3].all()
    assert by_row.sum() == 67
    assert by_column[:, 5].all()
    assert by_column.sum() == 70


@pytest.mark.parametrize(("operands", "result", "precision"), KERNEL_PRODUCTS)
@pytest.mark.parametrize(("m", "n", "k"), [(67, 33, 45), (5, 3, 5), (129, 131, 7)])
def test_c04_nothing_outside_the_operands(
    operands: str, result: str, precision: str, m: int, n: int, k: int
) -> None:
    """XLA copies these slices; test_gpu_configs.py watches the memory around operands in place."""
    parent = jnp.full((400, 400), jnp.nan, operands).at[:200, :200].set(1)

    @jax.jit
    def cut(parent: jax.Array) -> jax.Array:
        a, b = lax.optimization_barrier((parent[:m, :k], parent[:k, :n]))
        return matmul(a, b, precision=precision, preferred_element_type=result)

    assert_equal(cut(parent), np.full((m, n), k, jnp.dtype(result)))


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_c06_unaligned_pointer(dtype: str) -> None:
    flat = integers((1 + 64 * 64,), dtype)

    @jax.jit
    def shifted(flat: jax.Array) -> jax.Array:
        x = flat[1:].reshape(64, 64)
        return matmul(x, x)

    x = np.asarray(flat)[1:].reshape(64, 64)
    assert_equal(shifted(flat), product(x, x, dtype))


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_c07_layouts(dtype: str) -> None:
    m, n, k, z = 37, 41, 53, 3
    a, b = integers((m, k), dtype), integers((k, n), dtype, seed=1)
    u, v = integers((k, z, m), dtype, seed=2), integers((n, k, z), dtype, seed=3)

    @jax.jit
    def every(a: jax.Array, at: jax.Array, b: jax.Array, bt: jax.Array, u: jax.Array, v: jax.Array) -> Any:
        mixed = matmul(u.transpose(1, 2, 0), v.transpose(2, 1, 0))  # einsum 'kbm,nkb->bmn'
        return (matmul(at.T, b), matmul(a, bt.T), matmul(at.T, bt.T)), mixed

    plain, mixed = every(a, a.T, b, b.T, u, v)
    for out in plain:
        assert_equal(out, product(a, b, dtype))
    assert_equal(mixed, product(np.transpose(u, (1, 2, 0)), np.transpose(v, (2, 1, 0)), dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_c12_one_rounding(dtype: str) -> None:
    for k in (1024, 513):
        ones = jnp.ones((2, k), dtype)
        assert_equal(matmul(ones, ones.T), np.full((2, 2), k).astype(jnp.dtype(dtype)))
    x = jnp.zeros((1, 4096), dtype).at[0, jnp.array([0, 1, 2048])].set(jnp.array([1000, 1.5, -1000], dtype))
    assert_equal(matmul(x, jnp.ones((4096, 1), dtype)), np.full((1, 1), 1.5).astype(jnp.dtype(dtype)))


# ---- types ----


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype"),
    [
        ("float16", "bfloat16"),
        ("int32", "bfloat16"),
        ("uint8", "int8"),
        ("float32", "bfloat16"),
        ("bool", "float16"),
    ],
)
def test_c09_promotion(a_dtype: str, b_dtype: str) -> None:
    a, b = integers((3, 4), a_dtype), integers((4, 5), b_dtype, seed=1)
    assert_equal(matmul(a, b), product(a, b, jnp.matmul(a, b).dtype))


def test_c09_weak_types() -> None:
    strong, weak = jnp.ones((2, 2), jnp.bfloat16), jnp.full((2, 2), 2.0)
    assert weak.weak_type
    for a, b in itertools.product([strong, weak, jnp.ones((2, 2), jnp.int8)], repeat=2):
        ours, theirs = matmul(a, b), jnp.matmul(a, b)
        assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)
    assert_equal(matmul(2.0 * strong, strong), np.full((2, 2), 4).astype(jnp.bfloat16))


def test_c09_no_promotion() -> None:
    a, b = jnp.ones((2, 2), jnp.float8_e4m3fn), jnp.ones((2, 2), jnp.float8_e5m2)
    with pytest.raises(TypeError, match=r"float8_e4m3fn.*float8_e5m2.*cast one.*bfloat16"):
        matmul(a, b)


def test_c10_wider_result() -> None:
    ones = jnp.ones((1, 257), jnp.bfloat16)
    assert_equal(matmul(ones, ones.T, preferred_element_type=jnp.float32), np.full((1, 1), 257, np.float32))
    a, b = integers((3, 300), jnp.int8), integers((300, 4), jnp.int8, seed=1)
    assert_equal(matmul(a, b, preferred_element_type=jnp.float32), product(a, b, "float32"))


def test_c10_float64_is_computed_in_float64() -> None:
    with jax.enable_x64(True):
        a, b = jnp.asarray([[1, 2**-12]], jnp.float32), jnp.asarray([[1], [2**-20]], jnp.float32)
        out = matmul(a, b, preferred_element_type=jnp.float64)
        assert_equal(out, np.asarray([[1 + 2**-32]]))
        assert_equal(matmul(a.astype("float64"), b.astype("float64")), np.asarray([[1 + 2**-32]]))


def test_c11_integers_wrap() -> None:
    a = jnp.full((1, 300), 127, jnp.int8)
    assert_equal(matmul(a, a.T, preferred_element_type=jnp.int32), np.full((1, 1), 4838700, np.int32))
    assert_equal(matmul(a, a.T), np.full((1, 1), 44, np.int8))
    a = jnp.full((1, 131072), -128, jnp.int8)
    assert_equal(matmul(a, a.T, preferred_element_type=jnp.int32), np.full((1, 1), -(2**31), np.int32))


@pytest.mark.parametrize("dtype", ["complex64", "bool", "int32", "uint8", "float8_e4m3fn"])
def test_other_types_go_to_xla(dtype: str) -> None:
    a = integers((2, 3), "bool" if dtype == "bool" else "int32").astype(dtype)
    names = primitives(matmul, a, a.T)
    assert "dot_general" in names
    assert "jax_gemm" not in names
    assert matmul(a, a.T).dtype == jnp.dtype(dtype)


# ---- precision ----

X = [[1.1111111, 2.2222222], [3.3333333, 4.4444444]]
HIGHEST = [[6.1728387, 13.580245], [13.580245, 30.864195]]
PRECISIONS = [
    None,
    *lax.Precision,
    *itertools.product(lax.Precision, repeat=2),
    *itertools.product(["default", "high", "highest"], repeat=2),
    "default", "fastest", "bfloat16", "high", "tensorfloat32", "bfloat16_3x", "highest", "float32",
]  # fmt: skip
FULL = [
    lax.Precision.HIGHEST,
    (lax.Precision.HIGHEST, lax.Precision.DEFAULT),
    "highest",
    "float32",
    "F32_F32_F32",
]


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_c13_and_c14_each_precision(precision: Any) -> None:
    a = jnp.asarray(X, jnp.float32)
    for out in (
        matmul(a, a.T, precision=precision),
        jax.jit(lambda a: matmul(a, a.T, precision=precision))(a),
    ):
        np.testing.assert_allclose(out, HIGHEST, rtol=2e-3)  # tf32 has 11 bits


@pytest.mark.parametrize("precision", FULL, ids=str)
def test_c13_full_precision(precision: Any) -> None:
    a = jnp.asarray(X, jnp.float32)
    np.testing.assert_allclose(matmul(a, a.T, precision=precision), HIGHEST, rtol=3e-7)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((33, 33)), jnp.float32)
    np.testing.assert_array_equal(matmul(jnp.eye(33, dtype=x.dtype), x, precision=precision), x)


@pytest.mark.parametrize("name", ["highest", "float32", "F32_F32_F32"])
def test_c13_default_matmul_precision(name: str) -> None:
    a = jnp.asarray(X, jnp.float32)
    with jax.default_matmul_precision(name):
        np.testing.assert_allclose(matmul(a, a.T), HIGHEST, rtol=3e-7)
        np.testing.assert_allclose(jax.jit(lambda a: matmul(a, a.T))(a), HIGHEST, rtol=3e-7)


@pytest.mark.parametrize("preset", list(lax.DotAlgorithmPreset), ids=str)
@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("by_name", [False, True])
def test_c14_presets_are_honoured_or_named(preset: lax.DotAlgorithmPreset, dtype: str, by_name: bool) -> None:
    a = integers((4, 5), dtype)
    try:
        out = matmul(a, a.T, precision=preset.name if by_name else preset)
    except (ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        assert preset.name in str(error) or "algorithm" in str(error).lower()  # noqa: PT017
    else:
        np.testing.assert_array_equal(np.asarray(out, np.float64), product(a, a.T, np.float64))


@pytest.mark.parametrize("precision", ["lowest", "f32", ("highest", "lowest"), 3, ("high", "high", "high")])
def test_c14_unknown_precision(precision: Any) -> None:
    a = jnp.ones((2, 2))
    with pytest.raises(ValueError, match="precision"):
        matmul(a, a, precision=precision)


KERNELS_TAKE = [
    *[(dtype, precision) for dtype in KERNEL_DTYPES for precision in (None, "default", "high", "highest")],
    *[(dtype, "DEFAULT") for dtype in KERNEL_DTYPES],
    ("bfloat16", "BF16_BF16_F32"), ("float16", "F16_F16_F32"),
    ("float32", "TF32_TF32_F32"), ("float32", "F32_F32_F32"),
]  # fmt: skip
XLA_TAKES = [
    ("bfloat16", "BF16_BF16_BF16"), ("float16", "F16_F16_F16"), ("float32", "BF16_BF16_F32"),
    ("float32", "BF16_BF16_F32_X3"), ("float32", "BF16_BF16_F32_X6"), ("float32", "TF32_TF32_F32_X3"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "precision"), KERNELS_TAKE + XLA_TAKES)
def test_c14_who_computes(dtype: str, precision: str | None) -> None:
    a = jnp.ones((2, 2), dtype)
    names = primitives(lambda a: matmul(a, a, precision=precision), a)
    assert ("jax_gemm" in names) == ((dtype, precision) in KERNELS_TAKE)
    assert ("dot_general" in names) == ((dtype, precision) in XLA_TAKES)


# ---- options and errors ----


def test_backend_xla() -> None:
    a = jnp.ones((2, 2), jnp.bfloat16)
    assert "jax_gemm" not in primitives(lambda a: matmul(a, a, backend="xla"), a)
    assert_equal(matmul(a, a, backend="xla"), product(a, a, "bfloat16"))


def test_backend_cuda_says_what_it_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_devices(platform: str) -> None:
        raise RuntimeError(f"Unknown backend {platform}")

    monkeypatch.setattr(jax, "devices", no_devices)
    a = jnp.ones((2, 2), jnp.bfloat16)
    with pytest.raises(RuntimeError, match=r"no CUDA device: looked for .*'cuda'.*nvidia-smi"):
        matmul(a, a, backend="cuda")
    with pytest.raises(TypeError, match=r"no kernel multiplies int8 to int8.*bfloat16"):
        matmul(a.astype("int8"), a.astype("int8"), backend="cuda")


def test_backend_cuda_never_lowers_to_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax_gemm._ffi.missing_cuda", lambda: "")
    a = jax.device_put(jnp.ones((2, 2), jnp.bfloat16), jax.devices("cpu")[0])
    with pytest.raises(RuntimeError, match="compiled for cpu; place its inputs on a CUDA device"):
        matmul(a, a, backend="cuda")


def test_config() -> None:
    a = jnp.ones((2, 2), jnp.bfloat16)
    name = str(jax_gemm.explain(2, 2, 2).candidates[0]["name"])
    assert_equal(
        matmul(jnp.ones((8, 8), "bfloat16"), jnp.ones((8, 8), "bfloat16"), config=name),
        np.full((8, 8), 8).astype("bfloat16"),
    )
    with pytest.raises(ValueError, match=f"'unknown' is not a configuration for bf16; there are .*{name}"):
        matmul(a, a, config="unknown")
    with pytest.raises(TypeError, match=r"config=.* was asked for, but no kernel multiplies int32"):
        matmul(a.astype("int32"), a.astype("int32"), config=name)


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "message"),
    [
        (
            (2, 3),
            (4, 5),
            r"one size K, got 3 and 4 in a of shape \(2, 3\) and type float32, b of shape \(4, 5\)",
        ),
        ((3,), (4,), "only axis"),
        ((2, 3), (2,), "only axis"),
        ((2, 4, 3), (3, 3, 5), r"leading dimensions .* got 2 and 3 in .*\(2, 4, 3\).*\(3, 3, 5\)"),
        ((), (3,), "at least one dimension"),
        ((3,), (), "at least one dimension"),
    ],
)
def test_wrong_shapes(a_shape: tuple[int, ...], b_shape: tuple[int, ...], message: str) -> None:
    a, b = jnp.ones(a_shape), jnp.ones(b_shape)
    for function in (matmul, jax.jit(matmul)):
        with pytest.raises(ValueError, match=message):
            function(a, b)


def test_c08_scalars() -> None:
    with pytest.raises(ValueError, match="at least one dimension"):
        matmul(2.0, jnp.ones((2, 2)))


@pytest.mark.parametrize("wrong", [None, "a", [1.0, 2.0], object()])
def test_not_an_array(wrong: Any) -> None:
    with pytest.raises(TypeError, match="b is an array, got"):
        matmul(jnp.ones((2, 2)), wrong)


def test_unknown_options() -> None:
    a = jnp.ones((2, 2))
    with pytest.raises(ValueError, match="backend is None, 'cuda' or 'xla', not 'gpu'"):
        matmul(a, a, backend="gpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a type"):
        matmul(a, a, preferred_element_type="not a type")
