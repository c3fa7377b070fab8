"""Whether what a plugin calls `exact` computes on integers alone: servers must agree to the bit.

Two looks, because each misses something. The source is read for divisions, floating-point numbers,
clocks and randomness. And a few rounds are decided on arrays that notice when one of floating point
is made of them. What the package's own functions do inside does not count: their results are exact.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedrfq.plugins.source_text import text_around
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.centres import FULL
from fedrfq.robust.detectors.detector import Detector
from fedrfq.robust.example_rounds import Clusters, flipped
from fedrfq.robust.rules import Rule
from fedrfq.robust.state import State

Part = Detector | Rule
_ROUNDS = 3
# Folders whose code does not count: numpy's own, and this package's.
_TRUSTED = tuple(f"{Path(str(module.__file__)).parent}/" for module in (np, sys.modules["fedrfq"]))
_FLOAT_WORDS = {"float", "complex", "Fraction", "Decimal"}
# Of these modules, and of nothing else, because methods may have the same names.
_MODULES = {"np", "numpy", "math", "cmath", "torch", "time", "random", "datetime", "statistics"}
_INEXACT = {
    *("float16", "float32", "float64", "float128", "double", "single", "half", "longdouble"),
    *("sqrt", "cbrt", "mean", "average", "std", "var", "median", "percentile", "quantile"),
    *("exp", "log", "log2", "log10", "sin", "cos", "tan", "pi", "e", "linalg", "divide"),
    *("true_divide", "linspace", "hypot", "dist", "fsum"),
    *("random", "default_rng", "randint", "shuffle", "choice", "Random"),
    *("time", "monotonic", "perf_counter", "time_ns", "now", "today"),
}


def inexact(part: Part) -> str:
    """Return where a detector or a rule leaves the integers; "" where it is not seen to."""
    return _in_source(type(part)) or _in_rounds(part)


# What the source says


@cache
def _in_source(kind: type[Part]) -> str:
    where, text = text_around(kind)
    for node in _reached(ast.parse(text), kind.__name__):
        why = _leaves_integers(node)
        if why:
            return f"{where}, line {getattr(node, 'lineno', 0)}: {why}"
    return ""


def _reached(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    """Yield what stands in a class, and in the functions and classes of the file that it uses."""
    named = (ast.FunctionDef, ast.ClassDef)
    definitions = {node.name: node for node in tree.body if isinstance(node, named)}
    waiting = [name]
    seen = set[str]()
    while waiting:
        current = waiting.pop()
        if current in seen or current not in definitions:
            continue
        seen.add(current)
        for node in _without_options(definitions[current]):
            yield node
            if isinstance(node, ast.Name):
                waiting.append(node.id)


def _without_options(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below, except annotations and options, which may be numbers."""
    yield node
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in field if isinstance(field, list) else [field]:
            is_option = isinstance(child, ast.Call) and getattr(child.func, "id", "") == "option"
            if isinstance(child, ast.AST) and not is_option:
                yield from _without_options(child)


def _leaves_integers(node: ast.AST) -> str:
    if isinstance(node, ast.Div):
        return ""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
        return "/ divides in floating point: use //"
    if isinstance(node, ast.Constant) and isinstance(node.value, (float, complex)):
        return f"{node.value} is no whole number"
    if isinstance(node, ast.Name) and node.id in _FLOAT_WORDS:
        return f"{node.id} is no whole number"
    if isinstance(node, ast.Attribute) and node.attr in _INEXACT:
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in _MODULES:
            return f"{root.id}…{node.attr} is not exact"
    return ""


# What happens in a few rounds


class _Watched(np.ndarray[Any, Any]):
    """An array that notes where arrays or numbers of floating point are made from it."""

    seen: ClassVar[list[str]] = []

    def __array_finalize__(self, obj: Any) -> None:
        _note(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [_plain(value) for value in inputs]
        if "out" in options:
            options["out"] = tuple(_plain(value) for value in options["out"])
        result = getattr(ufunc, method)(*plain, **options)
        _note(result)
        if isinstance(result, np.ndarray):
            return result.view(_Watched)
        return result


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Watched) else value


def _note(result: Any) -> None:
    if getattr(getattr(result, "dtype", None), "kind", "i") not in "fc":
        return
    frame = sys._getframe(1)
    # This module stands between, and numpy calls itself.
    while frame.f_back is not None and (
        frame.f_globals is globals() or frame.f_code.co_filename.startswith(_TRUSTED[0])
    ):
        frame = frame.f_back
    where = frame.f_code.co_filename
    if not where.startswith(_TRUSTED) and not where.startswith("<"):
        _Watched.seen.append(f"{Path(where).name}, line {frame.f_lineno}: it makes {result.dtype}")


def _in_rounds(part: Part) -> str:
    _Watched.seen.clear()
    # What else is wrong with it is not asked here.
    with suppress(Exception):
        decided(part, watched=True)
    return next(iter(_Watched.seen), "")


def decided(part: Part, watched: bool = False, order: str = "C") -> list[Any]:
    """Return the results of a few rounds with liars: arrays and numbers.

    `order` is how the uploads lie in memory; rounds are the same whenever this is called.
    """
    world = Clusters(0, spread=0.4)
    state: State = part.start(10, 24) if isinstance(part, Rule) else part.start(20)
    results: list[Any] = []
    for _ in range(_ROUNDS):
        uploads = _laid_out(flipped(world.round(), [3, 4]), order)
        globals_ = world.globals_()
        if watched:
            uploads, globals_, state = _watching(uploads, globals_, state)
        state, answer = _asked(part, state, globals_, uploads)
        results += [*answer, *(state[name] for name in sorted(state))]
    return results


def _asked(
    part: Part, state: State, globals_: Globals, uploads: Uploads
) -> tuple[State, tuple[Any, ...]]:
    if isinstance(part, Rule):
        weight_KJ = np.where(uploads.held_KJ, FULL, 0)
        weight_KJ[5] //= 3
        state, centres_JV = part.combine(state, globals_, uploads, weight_KJ)
        return state, (centres_JV,)
    state, verdict = part.judge(state, globals_, uploads)
    return state, (verdict.weight_KJ, verdict.score_K, verdict.reason_KJ)


def _laid_out(uploads: Uploads, order: str) -> Uploads:
    counts_KJ = np.array(uploads.counts_KJ, order=order)  # type: ignore[call-overload]
    values_KJV = np.array(uploads.values_KJV, order=order)  # type: ignore[call-overload]
    return replace(uploads, counts_KJ=counts_KJ, values_KJV=values_KJV)


def _watching(uploads: Uploads, globals_: Globals, state: State) -> tuple[Uploads, Globals, State]:
    return (
        replace(
            uploads,
            counts_KJ=uploads.counts_KJ.view(_Watched),
            values_KJV=uploads.values_KJV.view(_Watched),
        ),
        replace(globals_, values_JV=globals_.values_JV.view(_Watched)),
        {name: array.view(_Watched) for name, array in state.items()},
    )
