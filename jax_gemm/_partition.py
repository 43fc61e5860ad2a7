"""A product over several devices: what each computes, and what becomes of partial sums.

The mesh axes over which the result is sharded shard the operands alike; those over which only a contracted
axis is sharded leave partial sums, which are added up, or added up and scattered where the result is sharded
over the very axis. All communication is XLA's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_gemm._labels import Labels

Product = Callable[[jax.Array, jax.Array], jax.Array]
_Axes = tuple[str, ...]  # of the mesh, major to minor


class Partition(NamedTuple):
    """How operands and result are sharded, and the axes over which the local products are added up."""

    a: PartitionSpec
    b: PartitionSpec
    out: PartitionSpec
    reduced: _Axes
    scattered: tuple[tuple[str, int], ...]  # mesh axis, axis of the result

    def local(self, product: Product) -> Product:
        """What one device computes from its shards."""

        def local(a: jax.Array, b: jax.Array) -> jax.Array:
            out = product(a, b)
            for mesh_axis, axis in self.scattered:
                out = lax.psum_scatter(out, mesh_axis, scatter_dimension=axis, tiled=True)
            return lax.psum(out, self.reduced) if self.reduced else out

        return local


def partition(
    labels: Labels,
    sizes: Mapping[str, int],
    mesh_shape: Mapping[str, int],
    a: PartitionSpec,
    b: PartitionSpec,
    out: PartitionSpec,
) -> Partition:
    """The partition that gives `out`, with as little of the operands moved as possible.

    Args:
      labels: of the product's axes.
      sizes: of the whole axes, by label.
      mesh_shape: sizes of the mesh's axes, by name.
      a: how the first operand is sharded.
      b: how the second is.
      out: how the result is to be.
    """
    a_axes, b_axes = _by_label(labels.a, a), _by_label(labels.b, b)
    kept = _by_label(labels.out, out)
    used = {axis for axes in kept.values() for axis in axes}
    contracted: dict[str, _Axes] = {}
    reduced: list[str] = []
    scattered: list[tuple[str, int]] = []
    for label in labels.a:
        if label not in labels.b or label in labels.out:
            continue
        both = a_axes[label] == b_axes[label]
        taken: list[str] = []
        for axis in a_axes[label] or b_axes[label]:
            # Shards of unequal size are padded, with anything: that must not be summed.
            if sizes[label] % math.prod(mesh_shape[x] for x in [*taken, axis]) or axis in reduced:
                break
            if axis in used:
                # Scattering keeps the order of the shards if the axis is the minor one of its label.
                owner = next(x for x in labels.out if axis in kept[x])
                extent = math.prod(mesh_shape[x] for x in kept[owner])
                if not both or kept[owner][-1] != axis or sizes[owner] % extent:
                    break
                kept[owner] = kept[owner][:-1]
                scattered.append((axis, labels.out.index(owner)))
            else:
                reduced.append(axis)
            taken.append(axis)
        contracted[label] = tuple(taken)
    local = kept | contracted
    return Partition(
        _spec(labels.a, local), _spec(labels.b, local), out, tuple(reduced), tuple(scattered[::-1])
    )


def automatic(labels: Labels, product: Product, a_shape: Sequence[int], b_shape: Sequence[int]) -> Product:
    """`product` as XLA partitions it over an automatic mesh, by the shardings that it finds best."""
    sizes = dict(zip(labels.a + labels.b, (*a_shape, *b_shape), strict=True))

    def partitioned(a: jax.Array, b: jax.Array) -> jax.Array:
        return product(a, b)

    def rule(mesh: Mesh, arguments: Sequence[Any], result: Any) -> Any:
        specs = [getattr(x.sharding, "spec", PartitionSpec()) for x in (*arguments, result)]
        chosen = partition(labels, sizes, mesh.shape, *specs)
        placed = [NamedSharding(mesh, spec) for spec in (chosen.out, chosen.a, chosen.b)]
        return mesh, chosen.local(product), placed[0], tuple(placed[1:])

    function = custom_partitioning(partitioned)
    function.def_partition(
        partition=rule,
        sharding_rule=", ".join(" ".join(x) for x in labels[:2]) + " -> " + " ".join(labels.out),
        reduction_factors=tuple(x for x in labels.a if x in labels.b and x not in labels.out),
    )
    return function


def explicit(labels: Labels, product: Product, a: Any, b: Any, out: Any) -> Product:
    """`product` over an explicit mesh, whose shardings the types of `a`, `b` and `out` carry."""
    mesh = out.sharding.mesh
    sizes = dict(zip(labels.a + labels.b, (*a.shape, *b.shape), strict=True))
    chosen = partition(labels, sizes, dict(mesh.shape), a.sharding.spec, b.sharding.spec, out.sharding.spec)

    def partitioned(a: jax.Array, b: jax.Array) -> jax.Array:
        with jax.sharding.use_abstract_mesh(mesh):
            a = jax.sharding.reshard(a, NamedSharding(mesh, chosen.a))
            b = jax.sharding.reshard(b, NamedSharding(mesh, chosen.b))
            return jax.shard_map(
                chosen.local(product),
                in_specs=(chosen.a, chosen.b),
                out_specs=chosen.out,
                check_vma=False,
            )(a, b)

    return partitioned


def full_spec(spec: PartitionSpec, ndim: int) -> tuple[Any, ...]:
    """An entry for each axis: a specification may leave out the last ones."""
    return (*spec, *[None] * (ndim - len(spec)))


def _by_label(labels: str, spec: PartitionSpec) -> dict[str, _Axes]:
    entries = full_spec(spec, len(labels))
    return {
        label: () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for label, entry in zip(labels, entries, strict=True)
    }


def _spec(labels: str, axes: Mapping[str, _Axes]) -> PartitionSpec:
    return PartitionSpec(*(axes[label] or None for label in labels))
