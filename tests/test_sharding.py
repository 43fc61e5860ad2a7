"""Products over several devices: which collectives a program holds, and that it computes what it should.

The collectives are read from programs compiled for H200s that are not there. The same partition is computed
on eight CPU devices, by products of XLA's in place of the kernels.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from oracle import integers

import jax_gemm
from jax_gemm import _ffi, _primitive, matmul
from jax_gemm._labels import Labels
from jax_gemm._partition import partition

H200 = (pathlib.Path(__file__).parent / "h200.txtpb").read_text()
PLUGINS = [name for name in ("jax_cuda13_plugin", "jax_cuda12_plugin") if importlib.util.find_spec(name)]
needs_plugin = pytest.mark.skipif(not PLUGINS, reason="JAX's CUDA plugin is not installed")
KINDS = [AxisType.Auto, AxisType.Explicit]
Specs = tuple[P, P, P | None]


def context(mesh: Mesh) -> contextlib.AbstractContextManager[Any]:
    explicit = mesh.axis_types[0] == AxisType.Explicit
    return jax.set_mesh(mesh) if explicit else contextlib.nullcontext()


def h200s(kind: AxisType, **shape: int) -> Mesh:
    count = int(np.prod(list(shape.values())))
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology=f"1x{count}x1")
    devices = topologies.make_mesh(topology, tuple(shape.values()), tuple(shape)).devices
    return Mesh(devices, tuple(shape), axis_types=(kind,) * len(shape))


def collectives(program: str) -> list[str]:
    found = re.findall(r"= \S+ (all-[a-z]+|reduce-scatter|collective-[a-z]+)(?:-start)?\(", program)
    return sorted(name for name in found if not name.endswith("-done"))


def compiled(function: Callable[..., Any], mesh: Mesh, specs: Specs, *shapes: tuple[int, ...]) -> str:
    a, b, out = specs
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, (a, b), strict=True)
    ]
    options = {} if out is None else {"out_shardings": NamedSharding(mesh, out)}
    with context(mesh):
        return jax.jit(function, **options).lower(*args).compile().as_text()


A, B = (64, 128), (128, 256)
XY = {"x": 2, "y": 2}
CASES = {
    "M": (matmul, XY, (P("x"), P(), None), A, B, []),
    "N": (matmul, XY, (P(), P(None, "x"), None), A, B, []),
    "M and N": (matmul, XY, (P("x"), P(None, "y"), None), A, B, []),
    "batch": (matmul, XY, (P("x"), P("x"), None), (4, 64, 128), (4, 128, 64), []),
    "batch and N": (matmul, XY, (P("x"), P(None, "y"), None), (4, 64, 128), (128, 64), []),
    "transposed": (
        lambda a, b: matmul(a.T, b.T), XY, (P(None, "x"), P("y"), None), (128, 64), (256, 128), [],
    ),
}  # fmt: skip
CONTRACTED = {
    "K": (matmul, XY, (P(None, "x"), P("x"), P()), A, B, ["all-reduce"]),
    "K over two axes": (matmul, XY, (P(None, ("x", "y")), P(("x", "y")), P()), A, B, ["all-reduce"]),
    "K and M": (matmul, XY, (P("y", "x"), P("x"), P("y")), A, B, ["all-reduce"]),
    "K, scattered over M": (matmul, XY, (P(None, "x"), P("x"), P("x")), A, B, ["reduce-scatter"]),
    "K, scattered over N": (matmul, XY, (P(None, "x"), P("x"), P(None, "x")), A, B, ["reduce-scatter"]),
    "K, scattered beside y": (
        matmul, XY, (P("y", "x"), P("x"), P(("y", "x"))), A, B, ["reduce-scatter"],
    ),
}  # fmt: skip


def loss(a: jax.Array, b: jax.Array) -> jax.Array:
    return (matmul(a, b, preferred_element_type=jnp.float32) ** 2).sum()


@needs_plugin
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", CASES)
def test_c20_kept_axes_need_no_communication(name: str, kind: AxisType) -> None:
    function, shape, specs, a, b, expected = CASES[name]
    program = compiled(function, h200s(kind, **shape), specs, a, b)
    assert _ffi.TARGET in program
    assert collectives(program) == expected


@needs_plugin
@pytest.mark.parametrize("name", CONTRACTED)
def test_c20_a_contracted_axis_needs_one_reduction(name: str) -> None:
    function, shape, specs, a, b, expected = CONTRACTED[name]
    program = compiled(function, h200s(AxisType.Auto, **shape), specs, a, b)
    assert _ffi.TARGET in program
    assert collectives(program) == expected


@needs_plugin
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_c20_gradients_of_data_parallel_weights_are_reduced_once(kind: AxisType) -> None:
    mesh = h200s(kind, x=2)
    program = compiled(jax.grad(loss, 1), mesh, (P("x"), P(), None), A, B)
    assert program.count(_ffi.TARGET) == 2
    assert collectives(program) == ["all-reduce"]


# ---- the same partitions, computed ----


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Partitions products on any platform, XLA's product in the kernels' place; lists whether it did."""
    taken: list[bool] = []

    def why_not(ctx: Any) -> str:
        if _primitive._unpartitioned(ctx):
            return "of this test"
        reason = _primitive._why_not_partitioned(ctx)
        taken.append(not reason)
        return reason

    monkeypatch.setattr(_primitive, "why_not_cuda", why_not)
    jax.clear_caches()
    yield taken
    jax.clear_caches()


def cpus(kind: AxisType, **shape: int) -> Mesh:
    count = int(np.prod(list(shape.values())))
    devices = np.asarray(jax.devices("cpu")[:count]).reshape(tuple(shape.values()))
    return Mesh(devices, tuple(shape), axis_types=(kind,) * len(shape))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", [*CASES, *CONTRACTED])
def test_c20_partitioned_products_are_right(name: str, kind: AxisType, partitioned: list[bool]) -> None:
    function, shape, (a_spec, b_spec, out_spec), a_shape, b_shape, _ = (CASES | CONTRACTED)[name]
    if kind == AxisType.Explicit and name in CONTRACTED:
        function = functools.partial(
            jax_gemm.dot_general, dimension_numbers=(((1,), (0,)), ((), ())), out_sharding=out_spec
        )
    mesh = cpus(kind, **shape)
    a, b = integers(a_shape, "float32"), integers(b_shape, "float32", seed=1)
    placed = (jax.device_put(a, NamedSharding(mesh, a_spec)), jax.device_put(b, NamedSharding(mesh, b_spec)))
    options = {}
    if out_spec is not None and kind == AxisType.Auto:
        options["out_shardings"] = NamedSharding(mesh, out_spec)
    with context(mesh):
        out = jax.jit(function, **options)(*placed)
    expected = np.matmul(np.asarray(a).T, np.asarray(b).T) if name == "transposed" else np.matmul(a, b)
    np.testing.assert_array_equal(out, expected)
    assert partitioned == [True]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("a_spec", "b_spec"), [(P("x"), P()), (P(), P(None, "y")), (P("x"), P(None, "y")), (P("x"), P("x"))]
)
def test_c20_gradients_are_right(a_spec: P, b_spec: P, kind: AxisType, partitioned: list[bool]) -> None:
    if kind == AxisType.Explicit and b_spec == P("x"):
        b_spec = P()
    mesh = cpus(kind, x=4, y=2)
    a, b = integers((8, 12), "float32"), integers((12, 16), "float32", seed=1)
    with context(mesh):
        grads = jax.jit(jax.grad(loss, (0, 1)))(
            jax.device_put(a, NamedSharding(mesh, a_spec)), jax.device_put(b, NamedSharding(mesh, b_spec))
        )
    expected = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1))(a, b)
    for x, y in zip(grads, expected, strict=True):
        np.testing.assert_array_equal(x, y)
    assert partitioned
    assert all(partitioned)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_c20_operands_that_cannot_be_read_in_place(kind: AxisType, partitioned: list[bool]) -> None:
    """Neither K axis joins the other in both operands: each device brings its shards in order."""
    mesh = cpus(kind, x=2)
    a, b = integers((8, 3, 5, 7), "float32"), integers((7, 4, 3, 5), "float32", seed=1)
    numbers = (((1, 2, 3), (2, 3, 0)), ((), ()))
    assert _ffi.core().expressible("mjkl,lnjk->mn", a.shape, b.shape)
    placed = (jax.device_put(a, NamedSharding(mesh, P("x"))), jax.device_put(b, NamedSharding(mesh, P())))
    with context(mesh):
        out = jax.jit(lambda a, b: jax_gemm.dot_general(a, b, numbers))(*placed)
    np.testing.assert_array_equal(out, jax.lax.dot_general(a, b, numbers))
    assert partitioned == [True]


def test_c20_uneven_shards_of_the_contracted_axis(partitioned: list[bool]) -> None:
    """Padding must not be summed: such an axis is not partitioned."""
    mesh = cpus(AxisType.Auto, x=4)
    a, b = integers((8, 10), "float32"), integers((10, 16), "float32", seed=1)

    def function(a: jax.Array, b: jax.Array) -> jax.Array:
        a = jax.lax.with_sharding_constraint(a, NamedSharding(mesh, P(None, "x")))
        return matmul(a, jax.lax.with_sharding_constraint(b, NamedSharding(mesh, P("x"))))

    placed = NamedSharding(mesh, P())
    out = jax.jit(function)(jax.device_put(a, placed), jax.device_put(b, placed))
    np.testing.assert_array_equal(out, np.matmul(a, b))
    assert partitioned == [True]


# ---- shard_map ----


@pytest.mark.parametrize("specs", [(P("x"), P()), (P(), P(None, "x")), (P("x"), P("x"))])
def test_c20_shard_map_with_checked_types_in_a_scan(specs: tuple[P, P]) -> None:
    mesh = cpus(AxisType.Auto, x=4)
    a = integers((8, 8) if specs[1] != P("x") else (4, 8, 8), "float32")
    b = integers((8, 8) if specs[1] != P("x") else (4, 8, 8), "float32", seed=1)
    out = specs[0] if specs[0] == P("x") else specs[1]

    def loss(product: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def local(a: jax.Array, b: jax.Array) -> jax.Array:
            def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
                return carry + product(a, b), None

            first = product(a, b)
            return jax.lax.scan(step, first, None, length=2)[0]

        return lambda a, b: (
            jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out, check_vma=True)(a, b) ** 2
        ).sum()

    ours = jax.jit(jax.value_and_grad(loss(matmul), (0, 1)))(a, b)
    theirs = jax.jit(jax.value_and_grad(loss(jnp.matmul), (0, 1)))(a, b)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("axis", [0, 1])
def test_c17_spmd_axis_name(axis: int) -> None:
    mesh = cpus(AxisType.Auto, x=4)
    a, b = integers((4, 8, 8), "float32"), integers((8, 8), "float32", seed=1)
    mapped = jax.vmap(matmul, (0, None), axis, spmd_axis_name="x")
    with jax.set_mesh(mesh):
        out = jax.jit(mapped)(jax.device_put(a, NamedSharding(mesh, P("x"))), b)
    np.testing.assert_array_equal(out, np.moveaxis(np.matmul(a, b), 0, axis))


# ---- the rule itself ----


def rule(a: P, b: P, out: P, **sizes: int) -> Any:
    return partition(Labels("mk", "kn", "mn"), {"m": 8, "k": 8, "n": 8} | sizes, {"x": 2, "y": 4}, a, b, out)


def test_operands_follow_the_result() -> None:
    chosen = rule(P(None, None), P(None, None), P("x", "y"))
    assert (chosen.a, chosen.b, chosen.reduced, chosen.scattered) == (P("x", None), P(None, "y"), (), ())


def test_a_replicated_operand_is_sharded_as_the_other() -> None:
    chosen = rule(P(None, "x"), P(), P())
    assert (chosen.a, chosen.b, chosen.reduced) == (P(None, "x"), P("x", None), ("x",))


def test_only_what_both_hold_is_scattered() -> None:
    assert rule(P(None, "x"), P("x"), P("x")).scattered == (("x", 0),)
    gathered = rule(P(None, "x"), P(), P("x"))
    assert (gathered.scattered, gathered.reduced, gathered.a) == ((), (), P("x", None))


def test_uneven_contracted_shards_are_gathered() -> None:
    chosen = rule(P(None, "y"), P("y"), P(), k=6)
    assert (chosen.a, chosen.b, chosen.reduced) == (P(None, None), P(None, None), ())
