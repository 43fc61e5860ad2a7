"""What needs a GPU: each configuration of the table, graphs, determinism, errors of a launch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import assert_equal, integers, product

from jax_gemm import _core, matmul

pytestmark = pytest.mark.gpu

DTYPES = {"bf16": "bfloat16", "f16": "float16", "tf32": "float32", "f32": "float32"}
CONFIGS = _core.configs()
LAYOUTS = ["nn", "nt", "tn", "tt"]


def layouts_of(a: jax.Array, b: jax.Array, layout: str) -> tuple[jax.Array, jax.Array]:
    return (a.T if layout[0] == "t" else a), (b.T if layout[1] == "t" else b)


def forced(config: _core.Config, layout: str, a: jax.Array, b: jax.Array, **options: object) -> jax.Array:
    precision = "highest" if config["math"] == "f32" else "default"
    stored = layouts_of(a, b, layout)

    @jax.jit
    def call(a: jax.Array, b: jax.Array) -> jax.Array:
        return matmul(
            *layouts_of(a, b, layout), precision=precision, config=config["name"], backend="cuda", **options
        )

    return call(*stored)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["name"])
def test_each_configuration(config: _core.Config, layout: str) -> None:
    """At its tile, one step of 16 bytes below and above, K from shorter than the ring to longer."""
    dtype = DTYPES[config["math"]]
    step = 16 // jnp.dtype(dtype).itemsize
    tile_m, tile_n, tile_k = config["tile_m"], config["tile_n"], config["tile_k"]
    for m, n, k in [
        (tile_m, tile_n, tile_k),
        (tile_m + step, tile_n - step, tile_k * (config["stages"] - 1)),
        (tile_m - step, tile_n + step, tile_k * (config["stages"] + 2) + step),
        (3 * tile_m, 2 * tile_n + step, step),
        (step, step, 2 * tile_k - step),
    ]:
        a, b = integers((m, k), dtype), integers((k, n), dtype, seed=1)
        assert_equal(forced(config, layout, a, b), product(a, b, dtype))
        if dtype != "float32":
            out = forced(config, layout, a, b, preferred_element_type="float32")
            assert_equal(out, product(a, b, "float32"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "config", [c for c in CONFIGS if c["any_alignment"]], ids=lambda config: config["name"]
)
def test_each_configuration_unaligned(config: _core.Config, layout: str) -> None:
    dtype = DTYPES[config["math"]]
    for offset in (1, 2, 3):
        shape = (
            config["tile_m"] + offset,
            config["tile_n"] + offset,
            config["tile_k"] * config["stages"] + offset,
        )
        a, b = integers((shape[0], shape[2]), dtype), integers((shape[2], shape[1]), dtype, seed=1)
        assert_equal(forced(config, layout, a, b), product(a, b, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_error_of_normal_operands(dtype: str) -> None:
    """At most twice that of jnp.dot, plus a floor."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((777, 777)), dtype) for _ in range(2))
    exact = product(a, b, np.float64)
    for precision in ("default", "highest"):
        error, base = (
            np.linalg.norm(np.asarray(f(a, b, precision=precision), np.float64) - exact)
            / np.linalg.norm(exact)
            for f in (matmul, jnp.matmul)
        )
        assert error <= 2 * base + 1e-7


def test_c13_default_is_tf32_and_highest_is_not() -> None:
    a = jnp.asarray(1 + 2.0**-20, jnp.float32).reshape(1, 1)
    one = jnp.ones((1, 1), jnp.float32)
    assert matmul(a, one, backend="cuda")[0, 0] == 1
    assert matmul(a, one, precision="highest", backend="cuda")[0, 0] == a[0, 0]


def test_c21_a_graph_with_new_buffers() -> None:
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.minimum(matmul(x, w, backend="cuda"), 3)
        return x

    def exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        for _ in range(4):
            x = np.minimum(x @ w, 3)
        return x

    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    graph = jax.jit(chain).lower(shape, shape).compile({"xla_gpu_graph_min_graph_size": 1})
    for seed in range(10):
        w = jnp.eye(64, dtype=jnp.float32)[np.random.default_rng(seed).permutation(64)]
        x = integers((64, 64), "float32", seed)
        np.testing.assert_array_equal(graph(x, w), exact(np.asarray(x), np.asarray(w)))


def test_c22_a_kernel_that_cannot_run() -> None:
    config = next(config for config in CONFIGS if not config["any_alignment"])
    a = jnp.ones((33, 33), DTYPES[config["math"]])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"jax_gemm: .*M=33 N=33 K=33"):
        matmul(a, a, config=config["name"], backend="cuda").block_until_ready()
    assert_equal(matmul(a, a, backend="cuda"), product(a, a, a.dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_c23_the_same_bits(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (
        jnp.asarray(rng.standard_normal((16, 16384)), dtype),
        jnp.asarray(rng.standard_normal((16384, 512)), dtype),
    )
    call = jax.jit(lambda a, b: matmul(a, b, backend="cuda"))
    first = np.asarray(call(a, b), np.float32)
    for _ in range(99):
        np.testing.assert_array_equal(np.asarray(call(a, b), np.float32), first)


def test_many_batches() -> None:
    """More than 65535: the limit of a grid's second and third dimension."""
    a, b = integers((70000, 3, 4), "bfloat16"), integers((70000, 4, 5), "bfloat16", seed=1)
    assert_equal(matmul(a, b, backend="cuda"), product(a, b, "bfloat16"))
