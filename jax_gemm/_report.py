"""Which of a function's products our kernels compute, and why the others are left to XLA."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import source_info_util
from jax.extend.core.primitives import dot_general_p, transpose_p

from jax_gemm import _ffi
from jax_gemm._install import (
    dot_general_precision,
    matrix_sizes,
    operands_as,
    why_not_a_gemm,
    why_not_worthwhile,
)
from jax_gemm._labels import labels_of
from jax_gemm._primitive import NoKernel, gemm_p, kernel_precision

if TYPE_CHECKING:
    from jax_gemm import _core

_PACKAGE = os.path.join(os.path.dirname(__file__), "")


@dataclasses.dataclass(frozen=True)
class ReportLine:
    """One product of a program.

    `contraction` names the axes of a, b and the result by letters, as the kernel reads them: under the
    transpositions that made an operand, with `a_shape` and `b_shape` of what it reads.

    `config` is the kernel configuration, None where no kernel of ours can run. `reason` says why XLA computes
    the product: always, or with a `config` unless `install(always=True)`. `count` is how often it is
    computed in one call of the function, None inside a `while` loop; branches of `cond` count in full.
    """

    primitive: str
    contraction: str
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    a_dtype: str
    b_dtype: str
    out_dtype: str
    precision: str
    count: int | None
    source: str
    config: str | None = None
    reason: str = ""

    def __str__(self) -> str:
        a, b = _array(self.a_dtype, self.a_shape), _array(self.b_dtype, self.b_shape)
        count = "? x" if self.count is None else f"{self.count} x"
        kernel = self.config or ""
        if self.reason:
            taken = f"{kernel} by install(always=True), else " if kernel else ""
            kernel = f"{taken}goes to XLA: {self.reason}"
        return (
            f"{count} {self.primitive} {self.contraction} of {a} and {b} to {self.out_dtype}, precision "
            f"{self.precision}, at {self.source}\n  {kernel}"
        )


@dataclasses.dataclass(frozen=True)
class Report:
    """The products of a program in their order. `str()` of it is a report."""

    device: str
    lines: tuple[ReportLine, ...]

    def __str__(self) -> str:
        taken = sum(line.config is not None and not line.reason for line in self.lines)
        possible = sum(line.config is not None for line in self.lines)
        products = f"{len(self.lines)} product{'s' * (len(self.lines) != 1)}"
        summary = (
            f"{products} on {self.device}: {taken} by our kernels after install(), "
            f"{possible} after install(always=True)"
        )
        return "\n".join([summary, *(f"\n{line}" for line in self.lines)])


def report(fn: Callable[..., Any], *args: Any, device: int | str | None = None, **kwargs: Any) -> Report:
    """The products in `fn(*args, **kwargs)`, each with its kernel configuration after `install`, or why not.

    `fn` is traced, nothing is computed. Bodies of `scan`, `cond`, `jit`, `shard_map` and the like are looked
    into, those of Pallas kernels are not. Arrays are taken to lie on one device, except in `shard_map`.

    Args:
      fn: any function that `jax.jit` takes. Bind static arguments, and an argument of its own that is called
        `device`, by `functools.partial`.
      *args: its arguments: arrays, `jax.ShapeDtypeStruct`s, or trees of these.
      device: as for `explain`: ordinal of a CUDA device or the name of a known one. By default the first one
        present, else "h200".
      **kwargs: its keyword arguments.

    Raises:
      ValueError: the device is not known.
      RuntimeError: the compiled extension is missing.

    Example:
      >>> import jax.numpy as jnp, jax_gemm
      >>> x = jnp.ones((64, 128), jnp.bfloat16)
      >>> print(jax_gemm.report(lambda x: x @ x.T, x, device="h200"))  # doctest: +SKIP
    """
    if device is None:
        device = 0 if _ffi.core().device_count() else "h200"
    facts = _facts(device)
    traced = jax.make_jaxpr(fn)(*args, **kwargs)
    return Report(facts["name"], tuple(_lines(traced.jaxpr, _Place(device, facts["compute_capability"]))))


def _facts(device: int | str) -> _core.Device:
    core = _ffi.core()
    if isinstance(device, int):
        return core.device_facts(device)
    known = {facts["name"]: facts for facts in core.known_devices()}
    if device not in known:
        raise ValueError(
            f"jax_gemm.report: device is an ordinal or one of {', '.join(known)}, not {device!r}"
        )
    return known[device]


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where an equation stands: on which device, how often it runs, and why not on one device."""

    device: int | str
    capability: tuple[int, int]
    count: int | None = 1
    manual: frozenset[str] = frozenset()
    partitioned: str = ""


def _lines(jaxpr: Any, place: _Place) -> Iterator[ReportLine]:
    values = _Values(jaxpr)
    for eqn in jaxpr.eqns:
        if eqn.primitive is dot_general_p or eqn.primitive is gemm_p:
            yield _line(eqn, values, place)
        elif eqn.primitive.name != "pallas_call":
            inner = _inside(eqn, place)
            for value in eqn.params.values():
                for part in value if isinstance(value, tuple | list) else (value,):
                    body = getattr(part, "jaxpr", part)  # of a closed one
                    if hasattr(body, "eqns"):
                        yield from _lines(body, inner)


def _inside(eqn: Any, place: _Place) -> _Place:
    match eqn.primitive.name:
        case "scan" if place.count is not None:
            return dataclasses.replace(place, count=place.count * eqn.params["length"])
        case "while":
            return dataclasses.replace(place, count=None)
        case "shard_map":
            new = eqn.params["manual_axes" if "manual_axes" in eqn.params else "newly_manual_axes"]
            manual = place.manual | frozenset(new)
            automatic = ", ".join(sorted(set(eqn.params["mesh"].axis_names) - manual))
            return dataclasses.replace(
                place,
                manual=manual,
                partitioned=automatic and f"axes of its mesh are not manual: {automatic}",
            )
    return place


class _Values:
    """What is known of a jaxpr's values while it is lowered: which are others, transposed."""

    def __init__(self, jaxpr: Any) -> None:
        self._first_reader: dict[int, Any] = {}
        self._source: dict[int, tuple[Any, tuple[int, ...]]] = {}  # value = transpose(source, permutation)
        for eqn in jaxpr.eqns:
            for variable in eqn.invars:
                self._first_reader.setdefault(id(variable), eqn)
            if eqn.primitive is transpose_p:
                self._source[id(eqn.outvars[0])] = (eqn.invars[0], eqn.params["permutation"])

    def sources(self, variable: Any, labels: str) -> list[tuple[str, tuple[int, ...]]]:
        """A value under all transpositions that made it: the innermost source first, itself last."""
        here = (labels, variable.aval.shape)
        if id(variable) not in self._source:
            return [here]
        source, permutation = self._source[id(variable)]
        inner = "".join(labels[permutation.index(axis)] for axis in range(len(permutation)))
        return [*self.sources(source, inner), here]

    def transposed_first(self, product: Any) -> tuple[int, ...] | None:
        """The permutation, if a transposition is the first to read this product."""
        eqn = self._first_reader.get(id(product))
        return eqn.params["permutation"] if eqn is not None and eqn.primitive is transpose_p else None

    def write_transposed(self, product: Any) -> None:
        """From now on the product is a transposition of what was made from it."""
        (transposed,) = self._first_reader[id(product)].outvars
        _, permutation = self._source.pop(id(transposed))
        self._source[id(product)] = (transposed, tuple(permutation.index(i) for i in range(len(permutation))))


def _line(eqn: Any, values: _Values, place: _Place) -> ReportLine:
    a, b = (variable.aval for variable in eqn.invars)
    (out,) = (variable.aval for variable in eqn.outvars)
    params = eqn.params
    permutation = params.get("out_permutation", tuple(range(out.ndim)))
    a_labels, b_labels, out_labels = labels_of(params["dimension_numbers"], a.ndim, b.ndim, permutation)
    line = ReportLine(
        primitive=str(eqn.primitive.name),
        contraction=f"{a_labels},{b_labels}->{out_labels}",
        a_shape=a.shape,
        b_shape=b.shape,
        a_dtype=a.dtype.name,
        b_dtype=b.dtype.name,
        out_dtype=out.dtype.name,
        precision=_precision_text(params["precision"]),
        count=place.count,
        source=_source(eqn.source_info),
    )
    sizes = matrix_sizes(params["dimension_numbers"], a.shape, b.shape)
    ours = eqn.primitive is gemm_p
    try:
        if ours:
            operand_type = params["operand_type"] or a.dtype
            kernel = kernel_precision(operand_type, out.dtype, params["precision"])
        else:
            kernel = dot_general_precision(a, b, out, params["precision"])
            operand_type = operands_as(a, b, params["precision"]) or a.dtype
            if 0 not in out.shape and (reason := why_not_a_gemm(sizes)):
                raise NoKernel(reason)
        if place.partitioned:
            raise NoKernel(place.partitioned)
    except NoKernel as unsupported:
        return dataclasses.replace(line, reason=str(unsupported))
    line = _as_read(line, eqn, (a_labels, b_labels, out_labels), values, sizes)
    if 0 in out.shape:
        return dataclasses.replace(line, reason="the result is empty: nothing is launched")
    try:
        plan = _ffi.core().plan(
            line.contraction, line.a_shape, line.b_shape, operand_type.name, line.out_dtype, kernel,
            params.get("config", ""), place.device,
        )  # fmt: skip
    except ValueError as error:
        return dataclasses.replace(line, reason=str(error))
    reason = "" if ours else why_not_worthwhile(kernel, sizes, place.capability)
    return dataclasses.replace(line, config=plan["config"], reason=reason)


def _as_read(
    line: ReportLine,
    eqn: Any,
    labels: tuple[str, str, str],
    values: _Values,
    sizes: tuple[int, int, int],
) -> ReportLine:
    """The choices that the lowerings make: the first sources and the order that kernels work on in place."""
    a_labels, b_labels, out_labels = labels
    a_sources = values.sources(eqn.invars[0], a_labels)
    b_sources = values.sources(eqn.invars[1], b_labels)
    for (a_read, a_shape), (b_read, b_shape) in itertools.product(a_sources, b_sources):
        if _ffi.core().expressible(f"{a_read},{b_read}->{out_labels}", a_shape, b_shape):
            continue
        if permutation := eqn.primitive is dot_general_p and values.transposed_first(eqn.outvars[0]):
            ordered = "".join(out_labels[axis] for axis in permutation)
            if not _ffi.core().expressible(f"{a_read},{b_read}->{ordered}", a_shape, b_shape):
                values.write_transposed(eqn.outvars[0])
                out_labels = ordered
        return dataclasses.replace(
            line, contraction=f"{a_read},{b_read}->{out_labels}", a_shape=a_shape, b_shape=b_shape
        )
    m, n, k = sizes
    (_, _), (a_batch, _) = eqn.params["dimension_numbers"]
    batch = math.prod(eqn.invars[0].aval.shape[axis] for axis in a_batch)
    return dataclasses.replace(line, contraction="zmk,zkn->zmn", a_shape=(batch, m, k), b_shape=(batch, k, n))


def _source(info: Any) -> str:
    """The innermost line that is neither JAX's nor ours."""
    frames = source_info_util.summarize(info, num_frames=9).splitlines()[::-1]
    return next((frame for frame in frames if not frame.startswith(_PACKAGE)), "an unknown place")


def _precision_text(precision: Any) -> str:
    pair = precision if isinstance(precision, tuple) else (precision,)
    names = [getattr(one, "name", None) or str(one) for one in pair]
    return " and ".join(dict.fromkeys("DEFAULT" if name == "None" else name for name in names))


def _array(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
