"""Trains a small transformer twice, unchanged: with XLA's products, and with ours by `jax_gemm.install()`.

    pip install flax optax
    python examples/train_transformer.py

Two layers of Flax (nnx) in bfloat16, scanned and rematerialised. The losses agree to bfloat16's rounding.
"""

from __future__ import annotations

import functools

import click
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from rich.console import Console
from rich.table import Table

import jax_gemm

VOCABULARY, WIDTH, HEADS, LAYERS = 256, 256, 4, 2
BATCH, LENGTH = 16, 128


class Block(nnx.Module):
    """Attention and an MLP, each with its residual."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        linear = functools.partial(nnx.Linear, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)
        self.norms = nnx.List([nnx.RMSNorm(WIDTH, dtype=jnp.bfloat16, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(
            HEADS, WIDTH, dtype=jnp.bfloat16, decode=False, use_bias=False, rngs=rngs
        )
        self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Transformer(nnx.Module):
    """Predicts the next of a row of tokens."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs: nnx.Rngs) -> Block:
            return Block(rngs)

        self.embedding = nnx.Embed(VOCABULARY, WIDTH, dtype=jnp.bfloat16, rngs=rngs)
        self.blocks = stacked(rngs)
        self.head = nnx.Linear(WIDTH, VOCABULARY, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        @nnx.remat
        def through(x: jax.Array, block: Block) -> jax.Array:
            return block(x)

        return self.head(through(self.embedding(tokens), self.blocks))


def loss(model: Transformer, tokens: jax.Array) -> jax.Array:
    logits = model(tokens[:, :-1]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def train(steps: int) -> list[float]:
    """The losses of `steps` steps from one seed, on rows that count in steps of their own."""
    model = Transformer(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model: Transformer, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
        value, grads = nnx.value_and_grad(loss)(model, tokens)
        optimizer.update(model, grads)
        return value

    losses = []
    for key in jax.random.split(jax.random.key(1), steps):
        first, stride = jax.random.randint(key, (2, BATCH, 1), 1, VOCABULARY)
        tokens = (first + stride * jnp.arange(LENGTH + 1)) % VOCABULARY
        losses.append(float(step(model, optimizer, tokens)))
    return losses


@click.command(help=__doc__)
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True)
def main(steps: int) -> None:
    theirs = train(steps)
    with jax_gemm.installed(always=True):
        ours = train(steps)
    table = Table("step", "XLA", "jax_gemm", "difference")
    for i, (x, y) in enumerate(zip(theirs, ours, strict=True)):
        table.add_row(str(i), f"{x:.4f}", f"{y:.4f}", f"{y - x:+.1e}")
    Console().print(table)
    # bfloat16 rounds to one part in 256, Adam amplifies what differs from step to step.
    worst = max(abs(y - x) / x for x, y in zip(theirs, ours, strict=True))
    if not worst < 2**-7:
        raise click.ClickException(f"losses differ by {worst:.1%}")


if __name__ == "__main__":
    main()
