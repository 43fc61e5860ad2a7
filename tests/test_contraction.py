"""A contraction brought into the kernels' form: roles, folds, swaps, refusals. No GPU."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from jax_gemm import _core


def plan(
    contraction: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], **options: object
) -> _core.Plan:
    arguments: dict[str, object] = {
        "dtype": "bfloat16",
        "out_dtype": "bfloat16",
        "precision": "default",
        "config": "",
        "device": "h200",
    }
    arguments |= options
    return _core.plan(contraction, a_shape, b_shape, **arguments)  # type: ignore[arg-type]


def sizes(p: _core.Plan) -> tuple[int, int, int, list[int]]:
    return p["m"], p["n"], p["k"], p["batch"]


def view(flat: np.ndarray, shape: list[int], strides: list[int]) -> np.ndarray:
    """`flat` under element strides; fails if any element lies outside."""
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    assert 0 <= last < flat.size
    bytes_ = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_)


def matrices(
    flat: np.ndarray, p: _core.Plan, operand: _core.Operand, kept: int, kept_first: bool
) -> np.ndarray:
    k_major = operand["major"] == "K"
    kept_stride, k_stride = (operand["ld"], 1) if k_major else (1, operand["ld"])
    if kept_first:
        return view(flat, [*p["batch"], kept, p["k"]], [*operand["batch_strides"], kept_stride, k_stride])
    return view(flat, [*p["batch"], p["k"], kept], [*operand["batch_strides"], k_stride, kept_stride])


def execute(p: _core.Plan, a: np.ndarray, b: np.ndarray, out_size: int) -> np.ndarray:
    """What a kernel does with the plan; each element of the output must be written exactly once."""
    first, second = (b, a) if p["swapped"] else (a, b)
    out = np.full(out_size, np.nan)
    writes = np.zeros(out_size)
    shape = [*p["batch"], p["m"], p["n"]]
    strides = [*p["out"]["batch_strides"], p["out"]["ld"], 1]
    x = matrices(first.ravel(), p, p["a"], p["m"], True)
    y = matrices(second.ravel(), p, p["b"], p["n"], False)
    view(out, shape, strides)[...] = x @ y
    view(writes, shape, strides)[...] += 1
    assert (writes == 1).all()
    return out


def check(contraction: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> _core.Plan:
    generator = np.random.default_rng(0)
    a = generator.integers(-8, 9, a_shape).astype(np.float64)
    b = generator.integers(-8, 9, b_shape).astype(np.float64)
    expected = reference(contraction, a, b)
    p = plan(contraction, a_shape, b_shape)
    np.testing.assert_array_equal(execute(p, a, b, expected.size), expected.ravel())
    return p


def reference(contraction: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """numpy.einsum, with a size of 1 against n repeated."""
    inputs, out = contraction.split("->")
    a_labels, b_labels = inputs.split(",")
    extents: dict[str, int] = {}
    for label, size in [*zip(a_labels, a.shape, strict=True), *zip(b_labels, b.shape, strict=True)]:
        extents[label] = size if extents.get(label, 1) == 1 else extents[label]
    a = np.broadcast_to(a, [extents[label] for label in a_labels])
    b = np.broadcast_to(b, [extents[label] for label in b_labels])
    result: np.ndarray = np.einsum(f"{a_labels},{b_labels}->{out}", a, b)
    return result


@pytest.mark.parametrize(
    ("contraction", "a_shape", "b_shape", "majors"),
    [
        ("mk,kn->mn", (3, 4), (4, 5), "KN"),
        ("mk,nk->mn", (3, 4), (5, 4), "KK"),
        ("km,kn->mn", (4, 3), (4, 5), "MN"),
        ("km,nk->mn", (4, 3), (5, 4), "MK"),
    ],
)
def test_four_majors(
    contraction: str, a_shape: tuple[int, int], b_shape: tuple[int, int], majors: str
) -> None:
    p = check(contraction, a_shape, b_shape)
    assert p["a"]["major"] + p["b"]["major"] == majors
    assert sizes(p) == (3, 5, 4, [])
    assert not p["swapped"]


def test_lhs_batch_folds_into_m() -> None:
    p = check("bmk,kn->bmn", (2, 3, 4), (4, 5))
    assert sizes(p) == (6, 5, 4, [])


def test_broadcast_batch_folds_into_m() -> None:
    p = check("bmk,bkn->bmn", (2, 3, 4), (1, 4, 5))
    assert sizes(p) == (6, 5, 4, [])


def test_broadcast_lhs_stays_a_batch_without_a_copy() -> None:
    p = check("bmk,bkn->bmn", (1, 3, 4), (2, 4, 5))
    assert sizes(p) == (3, 5, 4, [2])
    assert p["a"]["batch_strides"] == [0]
    assert p["b"]["batch_strides"] == [20]


def test_crossed_broadcast() -> None:
    p = check("xbmk,xbkn->xbmn", (4, 1, 2, 3), (1, 5, 3, 2))
    # Of two kept labels that cannot join the larger becomes M.
    assert sizes(p) == (4, 2, 3, [5, 2])


def test_batches_collapse() -> None:
    p = check("xybmk,xybkn->xybmn", (2, 3, 4, 5, 6), (2, 3, 4, 6, 7))
    assert sizes(p) == (5, 7, 6, [24])


def test_kept_and_contracted_labels_collapse() -> None:
    p = check("uvxy,xyst->uvst", (2, 3, 4, 5), (4, 5, 6, 7))
    assert sizes(p) == (6, 42, 20, [])


def test_out_contiguous_in_m_swaps() -> None:
    p = check("mk,kn->nm", (3, 4), (4, 5))
    assert p["swapped"]
    assert sizes(p) == (5, 3, 4, [])
    assert (p["a"]["major"], p["b"]["major"]) == ("M", "K")


def test_n_batch_becomes_a_batch_where_out_separates_it() -> None:
    p = check("mk,bkn->bmn", (3, 4), (2, 4, 5))
    assert sizes(p) == (3, 5, 4, [2])


def test_attention_layouts() -> None:
    p = check("bshd,bthd->bhst", (2, 3, 4, 5), (2, 6, 4, 5))
    assert sizes(p) == (3, 6, 5, [2, 4])
    p = check("bhst,bthd->bshd", (2, 4, 3, 6), (2, 6, 4, 5))
    assert sizes(p) == (3, 5, 6, [2, 4])


@pytest.mark.parametrize(
    ("contraction", "a_shape", "b_shape"),
    [
        ("mk,k->m", (3, 4), (4,)),
        ("k,kn->n", (4,), (4, 5)),
        ("k,nk->n", (4,), (5, 4)),
        ("k,k->", (4,), (4,)),
        ("m,n->mn", (3,), (5,)),
        ("m,n->nm", (3,), (5,)),
        ("bk,bk->b", (3, 4), (3, 4)),
        ("bmk,bk->mb", (2, 3, 4), (2, 4)),
        ("kb,bkn->bn", (4, 2), (2, 4, 5)),
        (",n->n", (), (5,)),
        (",->", (), ()),
        ("b,b->b", (3,), (3,)),
    ],
)
def test_vectors_and_scalars(contraction: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    check(contraction, a_shape, b_shape)


@pytest.mark.parametrize("shape", list(itertools.product((1, 3), repeat=4)))
def test_sizes_of_one(shape: tuple[int, int, int, int]) -> None:
    b, m, k, n = shape
    for contraction in ("bmk,bkn->bmn", "bkm,bkn->bmn", "bmk,bnk->bnm", "mbk,bkn->mbn"):
        a_labels, b_labels = contraction.split("->")[0].split(",")
        extents = {"b": b, "m": m, "k": k, "n": n}
        check(contraction, tuple(extents[x] for x in a_labels), tuple(extents[x] for x in b_labels))


def test_size_one_labels_vanish_wherever_they_stand() -> None:
    p = check("xmyk,kzn->myxzn", (1, 3, 1, 4), (4, 1, 5))
    assert sizes(p) == (3, 5, 4, [])


def test_random_contractions() -> None:
    """Whatever is called expressible computes the right thing."""
    choose = random.Random(0)
    served = 0
    for _ in range(2000):
        roles = [choose.choice(["ab", "ao", "bo", "abo"]) for _ in range(choose.randint(1, 7))]
        extents = {label: choose.choice([1, 2, 3]) for label in "pqrstuv"[: len(roles)]}
        labels = {}
        for array in "abo":
            of_array = [label for label, role in zip(extents, roles, strict=True) if array in role]
            choose.shuffle(of_array)
            labels[array] = "".join(of_array)
        repeated = {
            x: choose.choice(["", "", "a", "b"]) for x, r in zip(extents, roles, strict=True) if r == "abo"
        }
        shapes = [
            tuple(1 if repeated.get(x) == array else extents[x] for x in labels[array]) for array in "ab"
        ]
        contraction = f"{labels['a']},{labels['b']}->{labels['o']}"
        if _core.expressible(contraction, *shapes):
            continue
        served += 1
        check(contraction, *shapes)
    assert served > 700


# ---- Empty products ----


@pytest.mark.parametrize(
    ("contraction", "a_shape", "b_shape", "expected"),
    [
        ("mk,kn->mn", (0, 5), (5, 4), (0, 4, 5, [])),
        ("mk,kn->mn", (5, 4), (4, 0), (5, 0, 4, [])),
        ("bmk,bkn->bmn", (0, 2, 3), (0, 3, 2), (2, 2, 3, [0])),
    ],
)
def test_nothing_to_store(
    contraction: str,
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    expected: tuple[int, int, int, list[int]],
) -> None:
    p = plan(contraction, a_shape, b_shape)
    m, n, k, batch = expected
    assert (p["m"], p["n"], p["k"]) == (m, n, k)
    assert int(np.prod(p["batch"])) == int(np.prod(batch))
    assert p["config"] is None
    assert p["estimate"] is None


def test_empty_batch_against_one() -> None:
    p = plan("bmk,bkn->bmn", (0, 2, 3), (1, 3, 2))
    assert p["m"] * p["n"] * int(np.prod(p["batch"])) == 0


@pytest.mark.parametrize("alignment", [2, 16])
def test_no_terms_reads_nothing(alignment: int) -> None:
    p = plan("mk,kn->mn", (3, 0), (0, 4), alignment=alignment)
    assert sizes(p) == (3, 4, 0, [])
    assert p["config"] is not None
    assert (p["a"]["alignment"], p["b"]["alignment"]) == (16, 16)
    # Layouts of arrays without elements cannot stand in the way.
    assert _core.expressible("kbm,nkb->bmn", (0, 4, 5), (6, 0, 4)) == ""


# ---- Refusals ----


def test_c07_is_refused_for_b_by_name() -> None:
    reason = _core.expressible("kbm,nkb->bmn", (3, 4, 5), (6, 3, 4))
    assert "cannot be read in place: operand b" in reason
    assert "kbm,nkb->bmn" in reason
    assert "(3,4,5)" in reason
    assert "(6,3,4)" in reason
    with pytest.raises(ValueError, match="operand b has stride 1 along neither"):
        plan("kbm,nkb->bmn", (3, 4, 5), (6, 3, 4))


def test_refusal_names_the_callers_operand_when_swapped() -> None:
    reason = _core.expressible("nkb,kbm->bmn", (6, 3, 4), (3, 4, 5))
    assert "operand" not in reason or "operand a" in reason


@pytest.mark.parametrize(
    ("contraction", "a_shape", "b_shape", "reason"),
    [
        ("mkl,lkn->mn", (2, 3, 4), (4, 3, 5), "the contracted labels 'kl'"),
        ("bmk,bkn->mnb", (2, 3, 4), (2, 4, 5), "out's contiguous label is a batch label"),
        ("abcdemk,abcdekn->aembdcn", (2,) * 7, (2,) * 7, "5 batch dimensions, more than the 4"),
        ("mk,kn->mm", (2, 3), (3, 4), "occurs twice"),
        ("mm,mn->mn", (2, 2), (2, 4), "occurs twice"),
        ("mk,kn->mx", (2, 3), (3, 4), "'x' of out is in neither operand"),
        ("mk,kn->m", (2, 3), (3, 4), "'n' is in one operand only and not in out"),
        ("mk,kn", (2, 3), (3, 4), "the form is"),
        ("mkkn->mn", (2, 3), (3, 4), "the form is"),
        ("mk,kn->mn", (2, 3), (4, 5), "'k' has size 3 in a and 4 in b"),
        ("mk,kn->mn", (2, 1), (4, 5), "'k' has size 1 in a and 4 in b"),
        ("bmk,bkn->bmn", (2, 2, 3), (3, 3, 5), "'b' has size 2 in a and 3 in b"),
        ("mk,kn->mn", (2, 3, 1), (3, 5), "operand a has 3 dimensions, the contraction gives it 2"),
        ("mk,kn->mn", (2, 3), (3,), "operand b has 1 dimensions, the contraction gives it 2"),
        ("mk,kn->mn", (2**40, 2**30), (2**30, 2), "2^63 elements"),
        ("mk,kn->mn", (2**40, 2), (2, 2**40), "2^63 elements"),
    ],
)
def test_refusals(contraction: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], reason: str) -> None:
    message = _core.expressible(contraction, a_shape, b_shape)
    assert message.startswith("jax_gemm: ")
    assert reason in message


# ---- Sizes beyond 32 bits ----


def test_more_than_2_31_elements() -> None:
    p = plan("mk,kn->mn", (2**20, 2**14), (2**14, 2**16))
    assert sizes(p) == (2**20, 2**16, 2**14, [])
    p = plan("bmk,bkn->bmn", (2**17, 2**9, 64), (2**17, 64, 2**9))
    assert p["batch"] == [2**17]
    assert p["out"]["batch_strides"] == [2**18]
    p = plan("bmk,kn->bmn", (2**20, 2**13, 64), (64, 64))
    assert p["m"] == 2**33
    assert p["out"]["ld"] == 64


# ---- Alignment ----


@pytest.mark.parametrize(
    ("a_shape", "alignment", "expected"),
    [
        ((64, 64), 16, 16),
        ((64, 64), 2, 2),
        ((64, 64), 64, 16),
        ((64, 4098), 16, 4),
        ((64, 4100), 16, 8),
        ((64, 4097), 16, 2),
        ((1, 4097), 16, 16),  # a single row has no next one
    ],
)
def test_alignment_from_address_and_strides(a_shape: tuple[int, int], alignment: int, expected: int) -> None:
    p = plan("mk,kn->mn", a_shape, (a_shape[1], 64), alignment=alignment)
    assert p["a"]["alignment"] == expected


def test_alignment_of_batches() -> None:
    p = plan("bmk,bkn->bmn", (3, 1, 33), (3, 33, 64))
    assert p["a"]["alignment"] == 2
    assert p["b"]["alignment"] == 16
