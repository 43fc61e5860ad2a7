"""`dot_general`, `einsum`, `tensordot`, `dot` and `vdot` against JAX's own, in Flax's layers too."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from oracle import KERNEL_DTYPES, KERNEL_PRODUCTS, integers, primitives

import jax_gemm
from jax_gemm import dot, dot_general, einsum, tensordot, vdot

MATRICES: Any = (((1,), (0,)), ((), ()))


def assert_alike(ours: Callable[..., Any], theirs: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Same shape, type, weakness and values."""
    out, expected = jax.jit(lambda *args: (ours(*args, **options), theirs(*args, **options)))(*args)
    assert (out.shape, out.dtype, out.weak_type) == (expected.shape, expected.dtype, expected.weak_type)
    np.testing.assert_array_equal(out, expected)


def error(function: Callable[..., Any]) -> Exception | None:
    try:
        function()
    except Exception as raised:
        return raised
    return None


def assert_fails_alike(ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    """The same type of exception, outside jit and under it, and a message."""
    for wrap in (lambda function: function, jax.jit):
        expected = error(wrap(theirs))
        assert expected is not None
        with pytest.raises(type(expected), match=r"\w"):
            wrap(ours)()


# ---- dot_general ----


@st.composite
def products(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Shapes and dimension numbers: axes in any order, sizes of 0 and 1 among them."""
    axis = st.integers(0, 3)
    contracted, batch = draw(st.lists(axis, max_size=2)), draw(st.lists(axis, max_size=2))

    def operand() -> tuple[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]:
        sizes = [*contracted, *batch, *draw(st.lists(axis, max_size=2))]
        order = draw(st.permutations(range(len(sizes))))
        places = [order.index(i) for i in range(len(sizes))]
        numbers = (
            tuple(places[: len(contracted)]),
            tuple(places[len(contracted) : len(contracted) + len(batch)]),
        )
        return tuple(sizes[i] for i in order), numbers

    (a_shape, (a_contracted, a_batch)), (b_shape, (b_contracted, b_batch)) = operand(), operand()
    return a_shape, b_shape, ((a_contracted, b_contracted), (a_batch, b_batch))


@settings(deadline=None, max_examples=30)
@given(products(), st.sampled_from(KERNEL_PRODUCTS))
def test_any_axes(form: tuple[Any, Any, Any], types: tuple[str, str, str]) -> None:
    (a_shape, b_shape, numbers), (operands, result, precision) = form, types
    a, b = integers(a_shape, operands), integers(b_shape, operands, seed=1)
    options = {"precision": precision, "preferred_element_type": result}
    out, expected = dot_general(a, b, numbers, **options), lax.dot_general(a, b, numbers, **options)
    assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(out, expected)
    names = primitives(lambda a, b: dot_general(a, b, numbers, **options), a, b)
    assert names == (["jax_gemm"] if numbers[0][0] else ["dot_general"])


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(("a_shape", "b_shape"), [((3, 0), (0, 4)), ((0, 3), (3, 4)), ((2, 3), (3, 0))])
def test_c01_c02_no_terms_and_empty(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    assert_alike(
        functools.partial(dot_general, dimension_numbers=MATRICES),
        functools.partial(lax.dot_general, dimension_numbers=MATRICES),
        jnp.ones(a_shape, dtype),
        jnp.ones(b_shape, dtype),
    )


TYPES = ("bfloat16", "float16", "float32", "int8", "int32", "uint8", "bool", "complex64", "float8_e4m3fn")
PREFERRED = (None, "bfloat16", "float32", "int32", "complex64", jnp.float16, np.dtype("float32"), float)


@pytest.mark.parametrize("preferred", PREFERRED, ids=str)
@pytest.mark.parametrize(("a_dtype", "b_dtype"), list(itertools.product(TYPES, repeat=2)))
def test_c09_c10_types(a_dtype: str, b_dtype: str, preferred: Any) -> None:
    a, b = integers((3, 4), "uint8").astype(a_dtype), integers((4, 2), "uint8", seed=1).astype(b_dtype)
    types = []
    for function in (dot_general, lax.dot_general):
        try:
            types.append(
                jax.eval_shape(lambda a, b, f=function: f(a, b, MATRICES, None, preferred), a, b).dtype
            )
        except Exception as error:
            types.append(type(error))
    assert types[0] == types[1]


def test_c09_float64() -> None:
    with jax.enable_x64(True):
        a = jnp.asarray([[1, 2**-30]], "float64")
        assert_alike(dot_general, lax.dot_general, a, a.T, dimension_numbers=MATRICES)
        single = a.astype("float32")
        assert_alike(
            functools.partial(dot_general, dimension_numbers=MATRICES, preferred_element_type="float64"),
            functools.partial(lax.dot_general, dimension_numbers=MATRICES, preferred_element_type="float64"),
            single,
            single.T,
        )


WEAK = [jnp.full((2, 2), 2.0), jnp.full((2, 2), 2), jnp.ones((2, 2), "bfloat16"), jnp.ones((2, 2), "float32")]


@pytest.mark.parametrize("preferred", [None, "float32"])
@pytest.mark.parametrize(
    ("a", "b"), list(itertools.product(WEAK, repeat=2)), ids=lambda x: str(jax.typeof(x))
)
def test_c09_weak_types(a: jax.Array, b: jax.Array, preferred: str | None) -> None:
    options = {"preferred_element_type": preferred}
    numbers = {"dimension_numbers": MATRICES}
    assert_alike(
        functools.partial(dot_general, **numbers),
        functools.partial(lax.dot_general, **numbers),
        a,
        b,
        **options,
    )
    for ours, theirs in [(dot, jnp.dot), (tensordot, jnp.tensordot), (vdot, jnp.vdot)]:
        assert_alike(ours, theirs, a, b, **options)
    for subscripts in ("ij,jk->ik", "ij,jk->ki", "ij,jk"):
        assert_alike(
            functools.partial(einsum, subscripts), functools.partial(jnp.einsum, subscripts), a, b, **options
        )


def test_numpy_operands_and_scalars() -> None:
    a = np.arange(6.0).reshape(2, 3)
    numbers: Any = {"dimension_numbers": MATRICES}
    outer: Any = {"dimension_numbers": (((), ()), ((), ()))}
    for x, y, options in [
        (a, a.T, numbers),
        (a, jnp.asarray(a.T), numbers),
        (2.0, a, outer),
        (2.0, 3, outer),
    ]:
        ours, theirs = dot_general(x, y, **options), lax.dot_general(x, y, **options)
        assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)
        np.testing.assert_array_equal(ours, theirs)
    assert primitives(lambda: dot_general(a, a.T, MATRICES)) == ["jax_gemm"]


def test_axes_by_number_and_without_numbers() -> None:
    a = integers((3, 3), "float32")
    for numbers in (((1, 0), ((), ())), (([1], np.array([0])), ([], []))):
        np.testing.assert_array_equal(dot_general(a, a, numbers), a @ a)
        assert "jax_gemm" in primitives(lambda: dot_general(a, a, numbers))  # noqa: B023
    np.testing.assert_array_equal(dot_general(a, a, None), a @ a)  # type: ignore[arg-type]


class Shaped:
    shape = (2, 2)


X, Y = jnp.ones((2, 3)), jnp.ones((3, 4))
WRONG = {
    "contracted sizes differ": (X, X, MATRICES),
    "batch sizes differ": (jnp.ones((2, 3, 4)), jnp.ones((3, 4, 5)), (((2,), (1,)), ((0,), (0,)))),
    "no such axis": (X, Y, (((2,), (0,)), ((), ()))),
    "no such batch axis": (X, X, (((1,), (1,)), ((0,), (2,)))),
    "a negative axis": (X, Y, (((-1,), (0,)), ((), ()))),
    "an axis twice": (X, X, (((1, 1), (1, 1)), ((), ()))),
    "a batch axis twice": (X, X, (((1,), (1,)), ((0, 0), (0, 0)))),
    "contracted and batch": (X, X, (((1,), (1,)), ((1,), (1,)))),
    "different numbers of batch axes": (X, X, (((1,), (1,)), ((0,), ()))),
    "different numbers of contracted axes": (X, X, (((0, 1), (1,)), ((), ()))),
    "contracted in one alone": (X, X, (((1,), ()), ((), ()))),
    "a vector for a matrix": (jnp.ones(3), Y, MATRICES),
    "a scalar": (2.0, Y, MATRICES),
    "a float for an axis": (X, Y, (((1.0,), (0,)), ((), ()))),
    "no axes": (X, Y, ((None, None), ((), ()))),
    "a flat tuple": (X, Y, (1, 0)),
    "too few numbers": (X, Y, (((1,), (0,)),)),
    "no numbers, no matrices": (X, X, None),
    "a list": ([[1.0]], [[1.0]], MATRICES),
    "None": (None, Y, MATRICES),
    "a string": ("a", Y, MATRICES),
    "an object": (Shaped(), Y, MATRICES),
    "NumPy's strings": (np.array([["a"]]), Y, MATRICES),
    "an unknown precision": (X, Y, MATRICES, "lowest"),
    "a precision too many": (X, Y, MATRICES, ("high", "high", "high")),
    "a mixed pair": (X, Y, MATRICES, ("high", lax.Precision.HIGH)),
    "an unknown type": (X, Y, MATRICES, None, "not a type"),
    "an array for a type": (X, Y, MATRICES, None, X),
    "a narrower type": (X.astype("int32"), Y.astype("int32"), MATRICES, None, "int8"),
    "a sharding without a mesh": (X, Y, MATRICES, None, None, P("x")),
    "no sharding at all": (X, Y, MATRICES, None, None, "x"),
}


@pytest.mark.parametrize("args", WRONG.values(), ids=WRONG)
def test_errors_are_those_of_lax(args: tuple[Any, ...]) -> None:
    def call(function: Any) -> Any:
        return function(*args[:5], **({"out_sharding": args[5]} if len(args) > 5 else {}))

    assert_fails_alike(lambda: call(dot_general), lambda: call(lax.dot_general))


@pytest.mark.parametrize(
    "precision",
    ["BF16_BF16_F32_X3", lax.DotAlgorithmPreset.F32_F32_F32, "highest", ("high", "high")],
    ids=str,
)
def test_c14_who_computes(precision: Any) -> None:
    names = primitives(lambda: dot_general(X, Y, MATRICES, precision))
    assert names == (["dot_general"] if precision == "BF16_BF16_F32_X3" else ["jax_gemm"])
    with jax.default_matmul_precision("BF16_BF16_F32_X3"):
        assert primitives(lambda: dot_general(X, Y, MATRICES)) == ["dot_general"]


def test_a_class_whose_instances_are_called() -> None:
    class Contraction:
        def __call__(self, *args: Any, **options: Any) -> jax.Array:
            return dot_general(*args, **options)

    for made in (Contraction(), functools.partial(dot_general)):
        np.testing.assert_array_equal(made(X, Y, MATRICES, precision=None), X @ Y)


# ---- meshes ----


def mesh(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=jax.devices()[:2])


@pytest.mark.parametrize(
    "function",
    [jax_gemm.matmul, dot, functools.partial(einsum, "mk,kn->nm")],
    ids=["matmul", "dot", "einsum"],
)
def test_shard_map_with_one_replicated_operand(function: Any) -> None:
    a, b = integers((4, 6), "float32"), integers((6, 5), "float32", seed=1)
    out_spec = P(None, "x") if isinstance(function, functools.partial) else P("x")
    mapped = jax.shard_map(function, mesh=mesh(AxisType.Auto), in_specs=(P("x"), P()), out_specs=out_spec)
    np.testing.assert_array_equal(jax.jit(mapped)(a, b), function(a, b))


@pytest.mark.parametrize("named", [False, True])
def test_out_sharding(named: bool) -> None:
    explicit = mesh(AxisType.Explicit)
    with jax.set_mesh(explicit):
        a = jax.device_put(integers((4, 6), "float32"), NamedSharding(explicit, P(None, "x")))
        b = jax.device_put(integers((6, 4), "float32", seed=1), NamedSharding(explicit, P("x", None)))
        sharding: Any = NamedSharding(explicit, P("x", None)) if named else P("x", None)

        def call(function: Any, *args: Any) -> Any:
            return jax.jit(lambda a, b: function(*args, a, b, out_sharding=sharding))(a, b)

        for ours, theirs, args in [
            (lambda a, b, **options: dot_general(a, b, MATRICES, **options),
             lambda a, b, **options: lax.dot_general(a, b, MATRICES, **options), ()),
            (dot, jnp.dot, ()),
            (lambda a, b, **options: tensordot(a, b, 1, **options),
             lambda a, b, **options: jnp.tensordot(a, b, 1, **options), ()),
            (einsum, jnp.einsum, ("mk,kn->nm",)),
        ]:  # fmt: skip
            out, expected = call(ours, *args), call(theirs, *args)
            assert jax.typeof(out) == jax.typeof(expected)
            np.testing.assert_array_equal(out, expected)
        with pytest.raises(Exception, match="sharding"):
            dot(a, b)  # as in JAX: both are sharded over K


# ---- NumPy's functions ----

SUBSCRIPTS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk->ki", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    (" i j , j k -> i k ", (2, 3), (3, 4)),
    ("kbm,nkb->bmn", (4, 3, 5), (6, 4, 3)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bmhd,bnhd->bhmn", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("bhmn,bnhd->bmhd", (2, 3, 4, 6), (2, 6, 3, 5)),
    ("...hqk,...khd->...qhd", (2, 3, 4, 6), (2, 6, 3, 5)),
    ("...ij,jk->...ik", (2, 2, 3), (3, 4)),
    ("ij,...jk->...ik", (2, 3), (5, 3, 4)),
    ("bmk,bkn->mnb", (2, 3, 4), (2, 4, 5)),
    ("xmk,nk->xnm", (2, 3, 4), (5, 4)),
    ("i,i->", (3,), (3,)),
    ("i,j->ij", (3,), (4,)),
    ("bi,bi->bi", (2, 3), (2, 3)),
    ("ijk,kl->il", (2, 3, 4), (4, 5)),
    ("ij,jk->", (2, 3), (3, 4)),
    ("iij,jk->ik", (2, 2, 3), (3, 4)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("bij,bjk->bik", (1, 2, 3), (4, 3, 5)),
    ("ij,jk->ik", (2, 0), (0, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
@pytest.mark.parametrize(("subscripts", "a_shape", "b_shape"), SUBSCRIPTS)
def test_einsum(subscripts: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    a, b = integers(a_shape, dtype), integers(b_shape, dtype, seed=1)
    for options in ({}, {"precision": "highest", "preferred_element_type": jnp.float32}):
        assert_alike(
            functools.partial(einsum, subscripts), functools.partial(jnp.einsum, subscripts), a, b, **options
        )
        plugged = functools.partial(jnp.einsum, subscripts, _dot_general=dot_general)
        assert_alike(plugged, functools.partial(jnp.einsum, subscripts), a, b, **options)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_any_einsum(data: st.DataObject) -> None:
    a, b, out = (data.draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True)) for _ in range(3))
    out = [label for label in out if label in a + b]
    sizes = dict(zip("abcd", data.draw(st.tuples(*[st.integers(0, 3)] * 4)), strict=True))
    x = integers(tuple(sizes[label] for label in a), "float32")
    y = integers(tuple(sizes[label] for label in b), "float32", seed=1)
    subscripts = f"{''.join(a)},{''.join(b)}->{''.join(out)}"
    np.testing.assert_array_equal(einsum(subscripts, x, y), jnp.einsum(subscripts, x, y))


def test_einsum_transposes_nothing() -> None:
    a, b = jnp.ones((2, 3, 4, 6)), jnp.ones((2, 6, 3, 5))
    assert primitives(functools.partial(einsum, "bhmn,bnhd->bmhd"), a, b) == ["jax_gemm"]
    assert "transpose" in primitives(
        functools.partial(jnp.einsum, "bhmn,bnhd->bmhd", _dot_general=dot_general), a, b
    )


@pytest.mark.parametrize("optimize", ["auto", "optimal", "greedy", True, False, [(0, 1), (0, 1)]], ids=str)
def test_einsum_of_three(optimize: Any) -> None:
    args = [integers((2, 3), "float32"), integers((3, 4), "float32"), integers((4, 2), "float32")]
    ours = functools.partial(einsum, "ij,jk,kl->il", optimize=optimize)
    assert_alike(ours, functools.partial(jnp.einsum, "ij,jk,kl->il", optimize=optimize), *args)
    assert primitives(ours, *args).count("jax_gemm") == 2


def test_einsum_in_its_other_forms() -> None:
    a, b = integers((2, 3), "float32"), integers((3, 4), "float32", seed=1)
    np.testing.assert_array_equal(einsum(a, [0, 1], b, [1, 2], [0, 2]), a @ b)
    np.testing.assert_array_equal(einsum("ij->ji", a), a.T)
    np.testing.assert_array_equal(einsum("ij,jk->ik", np.asarray(a), np.asarray(b)), a @ b)
    assert_alike(
        functools.partial(einsum, "ij,jk"), functools.partial(jnp.einsum, "ij,jk"), a, b.astype("int8")
    )


AXES = [1, 2, 0, -1, (0, 1), (-1, -1), [1, 1], ([1, 2], [1, 0]), ((0,), (1,)), ([], []), ((-1, 0), (0, 2))]
WRONG_AXES = [3, 1.0, "ab", (0,), (0, 1, 2), ([0, 1], [0]), (0, [0]), (3, 0), (0, -4), ((0, 0), (1, 1)),
              ([0.0], [0]), (0, 0), None, np.int64(1)]  # fmt: skip


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
def test_tensordot(axes: Any, dtype: str) -> None:
    sizes = {"(0, 1)": (4, 2, 3), "((0,), (1,))": (4, 2, 3), "((-1, 0), (0, 2))": (3, 4, 2)}
    shapes = {"2": (3, 3, 4), "1": (3, 4, 2), "[1, 1]": (4, 3, 2), "(-1, -1)": (4, 2, 3)}
    a = integers((2, 3, 3), dtype)
    b = integers({**sizes, **shapes}.get(str(axes), (3, 3, 2)), dtype, seed=1)
    ours, theirs = functools.partial(tensordot, axes=axes), functools.partial(jnp.tensordot, axes=axes)
    assert_alike(ours, theirs, a, b)
    expected = dtype == "bfloat16" and axes not in (0, -1, ([], []))
    assert ("jax_gemm" in primitives(ours, a, b)) == expected


@pytest.mark.parametrize("axes", WRONG_AXES, ids=str)
def test_tensordot_errors_are_those_of_numpy(axes: Any) -> None:
    a, b = jnp.ones((2, 3, 3)), jnp.ones((4, 2))
    assert_fails_alike(lambda: tensordot(a, b, axes), lambda: jnp.tensordot(a, b, axes))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "complex64"])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((3,), (3,)), ((2, 3), (3,)), ((3,), (2, 3, 4)), ((2, 3), (3, 4)), ((2, 5, 3), (4, 3, 2)), ((), (2, 3)),
     ((2, 3), ()), ((), ())],
)  # fmt: skip
def test_dot(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    a, b = integers(a_shape, dtype), integers(b_shape, dtype, seed=1)
    assert_alike(dot, jnp.dot, a, b)
    assert_alike(dot, jnp.dot, a, integers(b_shape, "float32"))
    names = primitives(dot, a, b)
    assert ("jax_gemm" in names) == (dtype in KERNEL_DTYPES and bool(a_shape and b_shape))


def test_dot_of_pythons_scalars() -> None:
    for args in [(2.0, 3), (2, jnp.ones((2, 2), "bfloat16")), (jnp.ones((2,), "int8"), 2.5)]:
        assert_alike(dot, jnp.dot, *args)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int32", "complex64"])
@pytest.mark.parametrize(("a_shape", "b_shape"), [((6,), (2, 3)), ((2, 3), (3, 2)), ((), ()), ((0,), (0, 2))])
def test_vdot(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> None:
    a, b = integers(a_shape, dtype), integers(b_shape, dtype, seed=1)
    if dtype == "complex64":
        a = a + 1j
    assert_alike(vdot, jnp.vdot, a, b)
    assert ("jax_gemm" in primitives(vdot, a, b)) == (dtype in KERNEL_DTYPES)


@pytest.mark.parametrize(
    ("ours", "theirs", "args"),
    [
        (dot, jnp.dot, (X, X)),
        (dot, jnp.dot, ([1.0], X)),
        (dot, jnp.dot, (X.astype("float8_e4m3fn"), Y.astype("float8_e5m2"))),
        (vdot, jnp.vdot, (X, Y)),
        (vdot, jnp.vdot, (None, Y)),
        (einsum, jnp.einsum, ("ij,jk->ik", X, X)),
        (einsum, jnp.einsum, ("ij,jk->iz", X, Y)),
        (einsum, jnp.einsum, ("ijk,jk->i", X, Y)),
        (einsum, jnp.einsum, ("ij,jk->ik", X)),
        (einsum, jnp.einsum, ("ij,jk->ik", X, None)),
    ],
)
def test_errors_are_those_of_numpy(ours: Any, theirs: Any, args: tuple[Any, ...]) -> None:
    assert_fails_alike(lambda: ours(*args), lambda: theirs(*args))


# ---- Flax ----


class _Made:
    def __call__(self, *args: Any, **options: Any) -> jax.Array:
        return dot_general(*args, **options)


HOOKS = [{"dot_general": dot_general}, {"dot_general_cls": _Made}]


def attention(hooked: bool) -> nn.Module:
    """Flax's attention with every product through us, or through JAX."""
    options = {"qkv_dot_general": dot_general, "out_dot_general": dot_general} if hooked else {}
    function = nn.dot_product_attention
    if hooked:
        function = functools.partial(function, einsum_dot_general=dot_general)
    return nn.MultiHeadDotProductAttention(num_heads=2, attention_fn=function, **options)


def linen_layers() -> list[tuple[Any, Any, tuple[int, ...]]]:
    """(layer with our products, the layer as it is, shape of the input)."""
    made: list[tuple[Any, Any, tuple[int, ...]]] = [(attention(True), attention(False), (2, 5, 8))]
    for hook in HOOKS:
        made += [
            (nn.Dense(7, **hook), nn.Dense(7), (3, 5)),
            (nn.Dense(7, dtype=jnp.bfloat16, **hook), nn.Dense(7, dtype=jnp.bfloat16), (2, 3, 5)),
            (
                nn.DenseGeneral((3, 4), axis=(-1, 1), **hook),
                nn.DenseGeneral((3, 4), axis=(-1, 1)),
                (2, 5, 3, 6),
            ),
            (nn.DenseGeneral(4, batch_dims=(0,), **hook), nn.DenseGeneral(4, batch_dims=(0,)), (2, 5, 6)),
        ]
    return made


def nnx_layers() -> list[tuple[Any, Any, tuple[int, ...]]]:
    made: list[tuple[Any, Any, tuple[int, ...]]] = []

    def pair(layer: Any, shape: tuple[int, ...], *args: Any, hook: dict[str, Any], **options: Any) -> None:
        made.append(
            (
                layer(*args, **options, **hook, rngs=nnx.Rngs(0)),
                layer(*args, **options, rngs=nnx.Rngs(0)),
                shape,
            )
        )

    pair(nnx.Linear, (3, 5), 5, 7, hook={"dot_general": dot_general})
    pair(nnx.Linear, (3, 5), 5, 7, dtype=jnp.bfloat16, hook={"dot_general": dot_general})
    for hook in HOOKS:
        pair(nnx.LinearGeneral, (2, 5, 3), (5, 3), (4, 2), axis=(1, 2), hook=hook)
    hook = {"qkv_dot_general": dot_general, "out_dot_general": dot_general}
    pair(nnx.MultiHeadAttention, (2, 5, 8), num_heads=2, in_features=8, decode=False, hook=hook)
    return made


def loss(out: Any) -> Any:
    return (out.astype("float32") ** 2).sum()


@pytest.mark.parametrize(("layer", "plain", "shape"), linen_layers(), ids=lambda x: type(x).__name__)
def test_linen(layer: Any, plain: Any, shape: tuple[int, ...]) -> None:
    x = integers(shape, "float32")
    variables = plain.init(jax.random.key(0), x)
    np.testing.assert_array_equal(layer.apply(variables, x), plain.apply(variables, x))
    names = primitives(layer.apply, variables, x)
    assert "jax_gemm" in names
    assert "dot_general" not in names


@pytest.mark.parametrize(("layer", "plain", "shape"), nnx_layers(), ids=lambda x: type(x).__name__)
def test_nnx(layer: Any, plain: Any, shape: tuple[int, ...]) -> None:
    x = integers(shape, "float32")
    np.testing.assert_array_equal(layer(x), plain(x))
    graph, state = nnx.split(layer)
    names = primitives(lambda state, x: nnx.merge(graph, state)(x), state, x)
    # The attention of nnx has no hook for its two inner products.
    products = 2 if isinstance(layer, nnx.MultiHeadAttention) else 0
    assert names.count("jax_gemm") == (4 if products else 1)
    assert names.count("dot_general") == products


# ---- gradients ----


@pytest.mark.parametrize(("subscripts", "a_shape", "b_shape"), SUBSCRIPTS[:12])
def test_gradients_of_einsum(subscripts: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = integers(a_shape, "float32"), integers(b_shape, "float32", seed=1)
    ours, theirs = (
        jax.grad(lambda a, b, function=function: loss(function(subscripts, a, b)), (0, 1))(a, b)
        for function in (einsum, jnp.einsum)
    )
    for out, expected in zip(ours, theirs, strict=True):
        assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("function", ["dot", "tensordot", "vdot"])
@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_gradients_of_numpys_functions(function: str, dtype: str) -> None:
    a, b = integers((3, 3), dtype), integers((3, 3), dtype, seed=1)
    ours, theirs = (
        jax.grad(lambda a, b, module=module: loss(getattr(module, function)(a, b)), (0, 1))(a, b)
        for module in (jax_gemm, jnp)
    )
    for out, expected in zip(ours, theirs, strict=True):
        assert out.dtype == expected.dtype
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("layer", "plain", "shape"), linen_layers(), ids=lambda x: type(x).__name__)
def test_gradients_of_linen(layer: Any, plain: Any, shape: tuple[int, ...]) -> None:
    x = integers(shape, "float32")
    variables = plain.init(jax.random.key(0), x)
    ours, theirs = (
        jax.grad(lambda variables, module=module: loss(module.apply(variables, x)))(variables)
        for module in (layer, plain)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), ours, theirs)


@pytest.mark.parametrize(("layer", "plain", "shape"), nnx_layers(), ids=lambda x: type(x).__name__)
def test_gradients_of_nnx(layer: Any, plain: Any, shape: tuple[int, ...]) -> None:
    x = integers(shape, "float32")
    ours, theirs = (
        jax.tree.leaves(nnx.grad(lambda module: loss(module(x)))(module)) for module in (layer, plain)
    )
    for out, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
