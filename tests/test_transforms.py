"""Products under JAX's transformations: differentiation, batching, checkpointing. On any backend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core.primitives import dot_general_p
from oracle import integers, primitives

import jax_gemm
from jax_gemm import matmul

T = jnp.matrix_transpose


@pytest.fixture(autouse=True)
def _full_precision() -> Iterator[None]:
    """Sums of gradients outgrow the integers that tf32 holds."""
    with jax.default_matmul_precision("highest"):
        yield


Product = Callable[..., jax.Array]

# Products with operands in every major, batches of one and of both, and vectors.
FORMS: dict[str, tuple[Callable[[Product], Product], tuple[int, ...], tuple[int, ...]]] = {
    "nn": (lambda f: f, (5, 6), (6, 7)),
    "tn": (lambda f: lambda a, b: f(T(a), b), (6, 5), (6, 7)),
    "nt": (lambda f: lambda a, b: f(a, T(b)), (5, 6), (7, 6)),
    "tt": (lambda f: lambda a, b: f(T(a), T(b)), (6, 5), (7, 6)),
    "batched": (lambda f: f, (4, 5, 6), (4, 6, 7)),
    "shared b": (lambda f: f, (4, 5, 6), (6, 7)),
    "shared a": (lambda f: f, (5, 6), (4, 6, 7)),
    "broadcast": (lambda f: f, (4, 1, 2, 3), (5, 3, 2)),
    "vector b": (lambda f: f, (4, 5, 6), (6,)),
    "vectors": (lambda f: f, (6,), (6,)),
}


def pair(name: str, dtype: str = "float32") -> tuple[Product, Product, jax.Array, jax.Array]:
    form, a_shape, b_shape = FORMS[name]
    return form(matmul), form(jnp.matmul), integers(a_shape, dtype), integers(b_shape, dtype, seed=1)


def square(function: Product) -> Product:
    return lambda a, b: (function(a, b).astype(jnp.float32) ** 2).sum()


def assert_same(ours: Any, theirs: Any) -> None:
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
        np.testing.assert_array_equal(np.asarray(x, np.float64), np.asarray(y, np.float64))


# ---- differentiation ----


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMS)
def test_c16_gradients(name: str, dtype: str) -> None:
    ours, theirs, a, b = pair(name, dtype)
    cotangent = integers(jax.eval_shape(ours, a, b).shape, dtype, seed=2)
    assert_same(jax.vjp(ours, a, b)[1](cotangent), jax.vjp(theirs, a, b)[1](cotangent))


@pytest.mark.parametrize("name", FORMS)
def test_c16_higher_orders_and_modes(name: str) -> None:
    ours, theirs, a, b = pair(name)
    for transform in (
        lambda f: jax.hessian(f, (0, 1)),
        lambda f: jax.jacfwd(jax.jacrev(f, 1), 0),
        lambda f: lambda a, b: jax.jvp(f, (a, b), (b.sum() * a, b + 1)),
        lambda f: jax.grad(lambda a, b: (jax.grad(f)(a, b) ** 2).sum(), 1),
    ):
        assert_same(transform(square(ours))(a, b), transform(square(theirs))(a, b))


def test_c16_of_the_report() -> None:
    x, ones = integers((3, 4), "float32"), jnp.ones((4, 2), jnp.float32)
    assert_same(
        jax.hessian(lambda x: ((matmul(x, ones)) ** 2).sum())(x),
        jax.hessian(lambda x: ((x @ ones) ** 2).sum())(x),
    )


def test_linear_transpose() -> None:
    a, b = integers((5, 6), "float32"), integers((6, 7), "float32")
    out = integers((5, 7), "float32")
    assert_same(
        jax.linear_transpose(lambda a: matmul(a, b), a)(out), jax.linear_transpose(lambda a: a @ b, a)(out)
    )


@pytest.mark.parametrize(
    "shapes", [((0, 5), (5, 4)), ((5, 4), (4, 0)), ((0, 2, 3), (1, 3, 2)), ((3, 0), (0, 4))]
)
def test_c02_gradients_of_empty_products(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (jnp.ones(shape, jnp.float32) for shape in shapes)
    grads = jax.grad(lambda a, b: matmul(a, b).sum(), (0, 1))(a, b)
    assert_same(grads, jax.grad(lambda a, b: jnp.matmul(a, b).sum(), (0, 1))(a, b))


def test_cotangents_have_their_operands_types() -> None:
    a, b = integers((5, 6), "bfloat16"), integers((6, 7), "bfloat16")
    wide = lambda f: lambda a, b: (f(a, b, preferred_element_type=jnp.float32) ** 2).sum()  # noqa: E731
    ours, theirs = (jax.grad(wide(f), (0, 1))(a, b) for f in (matmul, jnp.matmul))
    assert_same(ours, theirs)
    assert ours[0].dtype == jnp.bfloat16


@pytest.mark.parametrize("name", ["nn", "batched", "shared a", "shared b"])
def test_gradients_are_one_product_each_without_transposition(name: str) -> None:
    _, _, a, b = pair(name)
    found = primitives(jax.grad(square(matmul), (0, 1)), a, b)
    assert found.count("jax_gemm") == 3
    assert not {"transpose", "dot_general"} & set(found)


# ---- types of gradients ----


def test_float32_gradients_of_weights_in_a_bfloat16_product() -> None:
    """The product is that of the rounded weights, their gradient is not rounded to bfloat16 on the way."""
    x, cotangent = integers((4096, 8), "bfloat16"), integers((4096, 16), "bfloat16", seed=2)
    w = integers((8, 16), "float32", seed=1) + 2.0**-12
    product = functools.partial(matmul, grad_preferred_element_type=jnp.float32)
    out, pullback = jax.vjp(product, x, w)
    assert_same(out, matmul(x, w.astype(jnp.bfloat16)))
    dx, dw = pullback(cotangent)
    assert_same(dw, jnp.matmul(x.T.astype(jnp.float32), cotangent.astype(jnp.float32)))
    assert_same(dx, jnp.matmul(cotangent, w.astype(jnp.bfloat16).T))
    assert (dw != dw.astype(jnp.bfloat16)).any()
    kinds = [
        eqn.params for eqn in jax.make_jaxpr(pullback)(cotangent).eqns if str(eqn.primitive) == "jax_gemm"
    ]
    assert len(kinds) == 2
    assert all(params["operand_type"] in (None, jnp.bfloat16) for params in kinds)


def test_float32_gradients_under_other_transformations() -> None:
    x, w = integers((3, 4, 8), "float16"), integers((8, 16), "float32", seed=1)
    product = functools.partial(matmul, grad_preferred_element_type=jnp.float32)
    loss = lambda f: lambda x, w: (f(x, w).astype(jnp.float32) ** 2).sum()  # noqa: E731
    plain = loss(lambda x, w: jnp.matmul(x.astype(jnp.float32), w))
    assert_same(jax.vmap(product, (0, None))(x, w), matmul(x, w.astype(jnp.float16)))
    per_example = jax.vmap(jax.grad(loss(product), 1), (0, None))(x, w)
    np.testing.assert_allclose(per_example, jax.vmap(jax.grad(plain, 1), (0, None))(x, w), rtol=2**-7)
    assert per_example.dtype == jnp.float32
    hessian = jax.jacfwd(jax.grad(loss(product), 1), 1)(x[0], w)
    np.testing.assert_allclose(hessian, jax.jacfwd(jax.grad(plain, 1), 1)(x[0], w), rtol=2**-7)


@pytest.mark.parametrize(
    ("a_type", "b_type", "gradients"),
    [
        ("bfloat16", "bfloat16", "float32"),
        ("bfloat16", "float16", "float16"),
        ("float32", "float32", "bfloat16"),
    ],
)
def test_gradient_types_that_jax_would_refuse(a_type: str, b_type: str, gradients: str) -> None:
    with pytest.raises(TypeError, match="grad_preferred_element_type"):
        matmul(jnp.ones((2, 2), a_type), jnp.ones((2, 2), b_type), grad_preferred_element_type=gradients)


@pytest.mark.parametrize(
    ("preset", "dtype"),
    [
        (jax.lax.DotAlgorithmPreset.BF16_BF16_F32, "bfloat16"),
        (jax.lax.DotAlgorithmPreset.F16_F16_F32, "float16"),
    ],
)
def test_gradients_round_operands_as_their_algorithm_does(preset: Any, dtype: str) -> None:
    a, b = integers((4, 5), dtype), integers((5, 6), dtype, seed=1)
    wide = functools.partial(matmul, precision=preset, preferred_element_type=jnp.float32)
    jaxpr = jax.make_jaxpr(jax.grad(lambda a, b: (wide(a, b) ** 2).sum(), (0, 1)))(a, b)
    kinds = [eqn.params for eqn in jaxpr.eqns if str(eqn.primitive) == "jax_gemm"]
    assert [params["operand_type"] for params in kinds] == [None, dtype, dtype]


# ---- batching ----

AXES = [(0, None), (None, 0), (0, 0), (1, 0), (None, 1), (2, None), (2, 1), (1, None)]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("name", ["nn", "nt", "batched", "shared b", "broadcast"])
def test_c17_vmap_of_each_side_is_one_call(name: str, axes: tuple[int | None, int | None]) -> None:
    ours, theirs, a, b = pair(name)
    a, b = (
        x if axis is None else jnp.stack([x, 2 * x, x + 1], axis)
        for x, axis in zip((a, b), axes, strict=True)
    )
    for out_axis in (0, 1):
        assert_same(jax.vmap(ours, axes, out_axis)(a, b), jax.vmap(theirs, axes, out_axis)(a, b))
    assert primitives(jax.vmap(ours, axes), a, b).count("jax_gemm") == 1


@pytest.mark.parametrize("inner", [(0, None), (1, 0)])
@pytest.mark.parametrize("outer", [(None, 0), (0, 0), (1, None)])
def test_c17_nested(inner: tuple[int | None, ...], outer: tuple[int | None, ...]) -> None:
    a_shape, b_shape = [5, 6], [6, 7]
    for axes, size in ((inner, 2), (outer, 3)):
        if axes[0] is not None:
            a_shape.insert(axes[0], size)
        if axes[1] is not None:
            b_shape.insert(axes[1], size)
    a, b = integers(tuple(a_shape), "float32"), integers(tuple(b_shape), "float32", seed=1)
    nested = lambda f: jax.vmap(jax.vmap(f, inner), outer)  # noqa: E731
    assert_same(nested(matmul)(a, b), nested(jnp.matmul)(a, b))
    assert primitives(nested(matmul), a, b).count("jax_gemm") == 1


def test_c17_vmap_of_grad() -> None:
    a, b = integers((3, 5, 6), "float32"), integers((6, 7), "float32")
    per_example = lambda f: jax.vmap(jax.grad(square(f), (0, 1)), (0, None))  # noqa: E731
    assert_same(per_example(matmul)(a, b), per_example(jnp.matmul)(a, b))


def test_a_shared_operand_is_folded_where_memory_allows() -> None:
    """Vmap over rows of one operand: the result keeps their order, and M is the two together."""
    jaxpr = jax.make_jaxpr(jax.vmap(matmul, (1, None), 1))(jnp.ones((5, 3, 6)), jnp.ones((6, 7)))
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["jax_gemm"]
    assert jaxpr.eqns[0].params["out_permutation"] == (0, 1, 2)


# ---- checkpoint ----


def chain(product: Product) -> Callable[..., jax.Array]:
    def function(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sin(product(jnp.sin(product(x, w)), v)).sum()

    return function


def products_in_grad(policy: Any, product: Product = matmul, kind: str = "jax_gemm") -> int:
    x = jnp.ones((8, 8), jnp.float32)
    checkpointed = jax.checkpoint(chain(product), policy=policy)
    jaxpr = jax.make_jaxpr(jax.grad(checkpointed, (0, 1, 2)))(x, x, x)
    return str(jaxpr).count(f"{kind}[")


def test_policies_save_our_products() -> None:
    policies = jax_gemm.checkpoint_policies
    saved = products_in_grad(jax.checkpoint_policies.everything_saveable)
    recomputed = products_in_grad(jax.checkpoint_policies.nothing_saveable)
    assert saved < recomputed
    assert products_in_grad(jax.checkpoint_policies.dots_saveable) == recomputed
    assert products_in_grad(policies.dots_saveable) == saved
    assert products_in_grad(policies.dots_with_no_batch_dims_saveable) == saved
    for policy in (policies.dots_saveable, policies.dots_with_no_batch_dims_saveable):
        assert products_in_grad(policy, jnp.matmul, "dot_general") == products_in_grad(
            jax.checkpoint_policies.dots_saveable, jnp.matmul, "dot_general"
        )


def test_policy_without_batch_dims() -> None:
    batch = {"dimension_numbers": (((2,), (1,)), ((0,), (0,)))}
    from jax_gemm._primitive import gemm_p

    policies = jax_gemm.checkpoint_policies
    assert not policies.dots_with_no_batch_dims_saveable(gemm_p, **batch)
    assert policies.dots_saveable(gemm_p, **batch)
    offload = policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    theirs = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    plain = {"dimension_numbers": (((1,), (0,)), ((), ()))}
    assert offload(gemm_p, **plain) == theirs(dot_general_p, **plain)
    assert offload(gemm_p, **batch) == theirs(dot_general_p, **batch)


def test_a_name_for_policies() -> None:
    def named(a: jax.Array, b: jax.Array) -> jax.Array:
        return matmul(a, b, name="product")

    policy = jax.checkpoint_policies.save_only_these_names("product")
    assert products_in_grad(policy, named) == products_in_grad(jax.checkpoint_policies.everything_saveable)
    x = integers((4, 4), "float32")
    assert_same(jax.jit(named)(x, x), jnp.matmul(x, x))
    assert "name[name=product]" in str(
        jax.make_jaxpr(lambda a, b: matmul(a, b, name="product"))(
            jnp.ones((2, 2), int), jnp.ones((2, 2), int)
        )
    )


def test_gradient_through_scan_and_checkpoint() -> None:
    def loss(product: Product) -> Callable[..., jax.Array]:
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return product(x, w), None

        return lambda x, ws: jax.lax.scan(jax.checkpoint(layer), x, ws)[0].sum()

    x, ws = integers((3, 4), "float32"), integers((2, 4, 4), "float32")
    ours, theirs = (jax.grad(loss(f), (0, 1))(x, ws) for f in (matmul, jnp.matmul))
    assert_same(ours, theirs)
