"""The axes of a product by name, as in einsum: what dot_general's numbers and a permutation say, readably."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NamedTuple

DimensionNumbers = tuple[
    tuple[tuple[int, ...], tuple[int, ...]],  # contracted axes of a, of b
    tuple[tuple[int, ...], tuple[int, ...]],  # batch axes of a, of b
]


class Labels(NamedTuple):
    """A product's axes, one letter an axis, as in einsum."""

    a: str
    b: str
    out: str

    def __str__(self) -> str:
        return f"{self.a},{self.b}->{self.out}"


def labels_of(
    dimension_numbers: DimensionNumbers, a_ndim: int, b_ndim: int, out_permutation: Sequence[int]
) -> Labels:
    (a_contract, b_contract), (a_batch, b_batch) = dimension_numbers
    a_labels = list(string.ascii_letters[:a_ndim])
    b_labels = list(string.ascii_letters[a_ndim : a_ndim + b_ndim])
    for a_axis, b_axis in zip((*a_contract, *a_batch), (*b_contract, *b_batch), strict=True):
        b_labels[b_axis] = a_labels[a_axis]
    product = [a_labels[axis] for axis in a_batch]
    product += [a_labels[axis] for axis in range(a_ndim) if axis not in (*a_contract, *a_batch)]
    product += [b_labels[axis] for axis in range(b_ndim) if axis not in (*b_contract, *b_batch)]
    return Labels("".join(a_labels), "".join(b_labels), "".join(product[axis] for axis in out_permutation))


def dot_parameters(labels: Labels) -> tuple[DimensionNumbers, tuple[int, ...], str]:
    """The dimension numbers and the permutation that make `labels`; the labels of the result in between."""
    a, b, out = labels
    batch = [label for label in a if label in b and label in out]
    contracted = [label for label in a if label in b and label not in out]
    product = "".join([*batch, *(x for x in a if x not in b), *(x for x in b if x not in a)])
    numbers = (
        (tuple(map(a.index, contracted)), tuple(map(b.index, contracted))),
        (tuple(map(a.index, batch)), tuple(map(b.index, batch))),
    )
    return numbers, tuple(map(product.index, out)), product
