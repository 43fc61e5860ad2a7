"""The examples run, and do what they show."""

from __future__ import annotations

import importlib.util
import pathlib
import types
from collections.abc import Iterator

import jax
import pytest
from click.testing import CliRunner

import jax_gemm
from jax_gemm import _ffi

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="not a source tree")


def example(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_matmul(capsys: pytest.CaptureFixture[str]) -> None:
    example("matmul").main()
    assert "network: float32 (4, 128, 256)" in capsys.readouterr().out


# Of Flax, with NumPy and JAX as they are; what our calls broadcast is tested elsewhere.
@pytest.fixture
def _lenient() -> Iterator[None]:
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.usefixtures("_lenient")
def test_transformer_trains() -> None:
    done = CliRunner().invoke(example("train_transformer").main, ["--steps", "2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.usefixtures("_lenient")
def test_transformer_is_computed_by_ours() -> None:
    """Every product of the forward and backward pass, for CUDA: none is left to XLA."""
    module = example("train_transformer")
    from flax import nnx

    model = module.Transformer(nnx.Rngs(0))
    tokens = jax.numpy.zeros((module.BATCH, module.LENGTH + 1), jax.numpy.int32)
    graph, state = nnx.split(model)

    def value(state: object, tokens: jax.Array) -> jax.Array:
        return module.loss(nnx.merge(graph, state), tokens)

    def lowered() -> str:
        return jax.jit(jax.grad(value)).trace(state, tokens).lower(lowering_platforms=("cuda",)).as_text()

    before = lowered()
    with jax_gemm.installed(always=True):
        after = lowered()
    assert before.count("stablehlo.dot_general") == after.count(f"@{_ffi.TARGET}") > 10
    assert "stablehlo.dot_general" not in after
