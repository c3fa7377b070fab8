"""Check that servers with other processors, BLAS kernels or numpy versions decide the same bits.

    python bench/digests.py --python OTHER/bin/python --python ANOTHER/bin/python

Every detector with every aggregation rule decides some rounds of integer uploads, many kinds of
lies among them, in several shapes and precisions. Every detector also decides on the messages of
rounds with statistics on a public map: with second moments, with noise, and with some that are
taken back. All results (uploads taken and refused, verdicts, records, global prototypes,
statistics) go into one SHA-256 per case, and these into a total. This is repeated in separate
processes: with the kernels that OpenBLAS has for other processors, with numpy's vector instructions
switched off, with two threads, and with other interpreters, which need numpy and nothing else. The
last columns show what floating point makes of the same numbers in each: a matrix product and exp.
The exit code is 1 if any case differs anywhere.

The uploads are drawn from SHAKE-256, not from numpy, whose generators may change.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload
from fedrfq.federation import codec
from fedrfq.federation.application import PrototypeApplication, PublicTask, Task
from fedrfq.federation.retained import MARK, withdrawal
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import LIMIT, MAX_COUNT, Globals, Ints, Precision, Uploads
from fedrfq.robust.aggregation import Decision, decide
from fedrfq.robust.detectors import DETECTORS, Detector
from fedrfq.robust.rules import RULES

_CORES = ("Prescott", "Core2", "Nehalem", "Sandybridge", "Haswell", "Zen", "SkylakeX", "Cooperlake")
# 1.0 as a fixed-point number.
_ONE = 2**14
# One client in so many lies.
_LIARS = 5
# Digits of a digest in the tables.
_SHORT = 8


@dataclass(frozen=True)
class Shape:
    """The size of a case: its text is part of what is hashed."""

    clients: int
    classes: int
    values: int
    bits: int
    rounds: int
    held: int = 40  # percent of the classes that a client holds
    lone: str = "keep"

    def __str__(self) -> str:
        return f"{self.clients}×{self.classes}×{self.values}, {self.bits} bits"


SMALL = (Shape(20, 10, 24, 24, 5), Shape(20, 10, 255, 16, 2), Shape(7, 3, 8192, 24, 2, held=80))
SHAPES = (
    Shape(20, 10, 24, 24, 20),
    Shape(20, 10, 255, 8, 8),
    Shape(20, 10, 255, 16, 8, held=15, lone="hold"),
    Shape(20, 10, 255, 24, 8),
    Shape(60, 62, 512, 24, 3),
    # The longest whose products need no shift: sums come close to 2⁵³.
    Shape(7, 3, 8192, 24, 5, held=80),
    Shape(7, 3, 9001, 24, 5, held=80),
)

# Statistics on a public map in rounds 1, 3 and 5, and prototypes in rounds 2 and 4.
EXCHANGE = Shape(20, 4, 24, 16, 5, held=70)
_MOMENTS = PublicTask("map", 2.0, Precision(16), EXCHANGE.classes, moments=3, values=9, every=2)
STATISTICS = {
    "moments": _MOMENTS,
    "taken back": replace(_MOMENTS, revocable=True),
    "noise": replace(_MOMENTS, moments=0, privacy=Privacy(noise=2.0)),
}


def drawn(label: str, *shape: int) -> Ints:
    """Return integers below 2³², the same everywhere and always."""
    raw = hashlib.shake_256(label.encode()).digest(4 * int(np.prod(shape)))
    return np.frombuffer(raw, "<u4").astype(np.int64).reshape(shape)


def bell(label: str, *shape: int) -> Ints:
    """Return sums of four bytes less their mean, with a standard deviation of 148."""
    words = drawn(label, *shape)
    total = np.zeros(shape, np.int64)
    for shift in (0, 8, 16, 24):
        total += words >> shift & 255
    return total - 510


@cache
def uploads(shape: Shape, round_: int) -> Uploads:
    """Return the uploads of a round.

    Honest ones are near the centres of their classes, some clients are absent, and every liar has
    a lie of its own.
    """
    label = f"{shape} {round_}"
    size = (shape.clients, shape.classes, shape.values)
    centres_JV = drawn(f"{shape} centres", *size[1:]) % _ONE
    held_KJ = drawn(f"{shape} held", *size[:2]) % 100 < shape.held
    counts_KJ = np.where(held_KJ, 1 + drawn(f"{label} counts", *size[:2]) % 300, 0)
    values_KJV = centres_JV + 16 * bell(f"{label} values", *size)
    for liar in range(0, shape.clients, _LIARS):
        # In every third round nobody lies.
        if round_ % 3 != 2:
            _lie((3 * (liar // _LIARS) + 5 * round_) % 8, liar, counts_KJ, values_KJV)
    precision = Precision(shape.bits)
    values_KJV = precision.rounded(values_KJV) * (counts_KJ > 0)[:, :, None]
    # Numbers that no message can carry: too many samples, too large a value, one off the grid of
    # the coarse precisions.
    if round_ % 2:
        counts_KJ[1, 0] = MAX_COUNT + 1
        values_KJV[3, 0, 0] = LIMIT
        values_KJV[2, 0, 0] += 1
    here_K = drawn(f"{label} here", shape.clients) % 10 > 0
    everyone = Uploads(tuple(range(shape.clients)), counts_KJ, values_KJV, precision=precision)
    return everyone.only(here_K)


def _lie(kind: int, liar: int, counts_KJ: Ints, values_KJV: Ints) -> None:
    """Replace a client's upload by a lie of the given kind."""
    if kind == 0:
        values_KJV[liar] *= -1
    elif kind == 1:
        values_KJV[liar] *= 5
    elif kind == 2:
        values_KJV[liar] = np.roll(values_KJV[liar], 1, axis=0)
        counts_KJ[liar] *= 1000
    # A copy of the next client's, or nearly.
    elif kind in (3, 4):
        counts_KJ[liar] = counts_KJ[liar + 1]
        values_KJV[liar] = values_KJV[liar + 1]
        values_KJV[liar, :, 0] ^= kind == 4
    # As far out as a value can be.
    elif kind == 5:
        values_KJV[liar] = np.where(values_KJV[liar] & 1, LIMIT - 1, 1 - LIMIT)
    elif kind == 6:
        values_KJV[liar] = (values_KJV[liar] * 6 + values_KJV[liar, ::-1] * 4) // 10
    else:
        counts_KJ[liar] = 0


def detector(name: str, shape: Shape) -> Detector:
    """Return a detector, with the options that it has set for the shape."""
    options: dict[str, Any] = {"psi": shape.clients // _LIARS, "lone": shape.lone}
    names = {field.name for field in fields(DETECTORS[name])}
    return DETECTORS[name](**{key: value for key, value in options.items() if key in names})


def decisions(name: str, rule: str, shape: Shape) -> Iterator[Decision]:
    """Yield a server's decisions, round after round."""
    judge = detector(name, shape)
    state = judge.start(shape.clients)
    globals_ = Globals.none(shape.classes, shape.values)
    for round_ in range(shape.rounds):
        decision = decide(judge, rule, state, globals_, uploads(shape, round_))
        state = decision.state
        globals_ = decision.globals_
        yield decision


def canonical(decision: Decision) -> Iterator[bytes]:
    """Yield the bytes of all that servers must agree on, independent of how it is stored."""
    taken = decision.uploads
    verdict = decision.verdict
    globals_ = decision.globals_
    yield json.dumps(sorted(taken.refused.items())).encode()
    arrays: dict[str, NDArray[Any]] = {
        "clients": np.array(taken.clients, np.int64),
        "counts": taken.counts_KJ,
        "present": globals_.present_J,
        "reason": verdict.reason_KJ,
        "score": verdict.score_K,
        "values": globals_.values_JV,
        "weight": verdict.weight_KJ,
        **{f"state.{name}": record for name, record in decision.state.items()},
    }
    for name, array in sorted(arrays.items()):
        if array.dtype not in (np.dtype(np.int64), np.dtype(np.bool_)):
            raise TypeError(f"{name} is of {array.dtype}, not of int64 or bool")
        yield f"{name} {list(array.shape)}".encode()
        yield np.ascontiguousarray(array, "<i8").tobytes()


def statistics(public: PublicTask, round_: int) -> Uploads:
    """Return what clients would send of their classes on the public map in a round."""
    label = f"statistics {public.rows} {round_}"
    size = (EXCHANGE.clients, public.rows, public.values)
    centres_RV = drawn(f"statistics {public.rows} centres", *size[1:]) % _ONE - _ONE // 2
    held_KJ = drawn("statistics held", *size[:2]) % 100 < EXCHANGE.held
    counts_KR = np.where(held_KJ, 1 + drawn(f"{label} counts", *size[:2]) % 300, 0)
    counts_KR[:, public.classes :] = counts_KR[:, : public.classes].sum(1, keepdims=True)
    values_KRV = centres_RV + 4 * bell(label, *size)
    values_KRV[:, public.classes :] //= 8
    # Two are of other classes, and one is longer than the norm: it is refused.
    values_KRV[:2, : public.classes] = np.roll(values_KRV[:2, : public.classes], 1, axis=1)
    values_KRV[2] *= 4
    values_KRV = public.precision.rounded(values_KRV) * (counts_KR > 0)[:, :, None]
    return Uploads(tuple(range(size[0])), counts_KR, values_KRV, precision=public.precision)


def messages(public: PublicTask, round_: int) -> Iterator[Upload]:
    """Yield what clients send in a round."""
    latest = statistics(public, round_)
    sent = latest if public.due(round_) else uploads(EXCHANGE, round_).checked()
    replacing = latest.encoded(round_)
    for client, content in zip(sent.clients, sent.encoded(round_), strict=True):
        kind = (client + round_) % 10
        # Some replace their last statistics, or take them back, in whatever round it is.
        if kind == 0:
            content = MARK + replacing[client]
        elif kind == 1:
            content = withdrawal(round_, client, public)
        # What no server may admit.
        elif kind == 2:
            content = content[:-1]
        yield Upload(round_, client, content)


def outcomes(name: str, public: PublicTask) -> Iterator[tuple[list[int], Outcome]]:
    """Yield whose messages a server admits, and its outcome, round after round."""
    precision = Precision(EXCHANGE.bits)
    sizes = (EXCHANGE.clients, EXCHANGE.classes, EXCHANGE.values)
    task = Task(detector(name, EXCHANGE), "weighted", precision, *sizes, public)
    application = PrototypeApplication(task)
    outcome = application.start()
    for round_ in range(1, EXCHANGE.rounds + 1):
        admitted = [each for each in messages(public, round_) if application.refuses(each) is None]
        outcome = application.decide(round_, outcome, admitted)
        yield [each.client for each in admitted], outcome


def digest(parts: Iterable[bytes]) -> str:
    """Return the hash of the parts and their lengths."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def total(cases: Mapping[str, str]) -> str:
    """Return the digest of all cases."""
    return digest(f"{case} {found}".encode() for case, found in sorted(cases.items()))


def cases(shapes: Sequence[Shape]) -> tuple[dict[str, str], dict[str, int]]:
    """Return the digests by case, and how many uploads were dropped in each."""
    digests: dict[str, str] = {}
    dropped: dict[str, int] = {}
    for shape in shapes:
        for name in DETECTORS:
            for rule in RULES:
                case = f"{shape} | {name} | {rule}"
                rounds = list(decisions(name, rule, shape))
                parts = (part for decision in rounds for part in canonical(decision))
                digests[case] = digest(parts)
                dropped[case] = sum(int((~decision.verdict.kept_K).sum()) for decision in rounds)
    for about, public in STATISTICS.items():
        for name in DETECTORS:
            case = f"statistics, {about} | {name} | weighted"
            found = list(outcomes(name, public))
            digests[case] = digest(
                part for admitted, outcome in found for part in (bytes(admitted), *outcome)
            )
            dropped[case] = sum(_dropped(outcome) for _, outcome in found)
    return digests, dropped


def _dropped(outcome: Outcome) -> int:
    _, verdict = codec.decode_verdicts(outcome.verdicts, EXCHANGE.classes)
    return int((~verdict.kept_K).sum())


def control() -> dict[str, str]:
    """Return digests of floating-point results, which may differ from machine to machine."""
    whole_NV = bell("control", 192, 511)
    digests = {}
    for dtype, bits in ((np.float32, 32), (np.float64, 64)):
        floats_NV: NDArray[Any] = (whole_NV / 148).astype(dtype)
        product = floats_NV @ floats_NV[:96].T
        digests[f"product{bits}"] = digest([product.tobytes()])
        digests[f"exp{bits}"] = digest([np.exp(floats_NV).tobytes()])
    return digests


def about() -> dict[str, Any]:
    """Return what computes in this process, as numpy and OpenBLAS report it."""
    # numpy 2 renamed its core.
    core = getattr(np, "_core", None) or np.core
    inner = core._multiarray_umath
    usable = [name for name in inner.__cpu_dispatch__ if inner.__cpu_features__[name]]
    return {
        "numpy": np.__version__,
        "usable": usable,
        "baseline": inner.__cpu_baseline__,
        "kernels": _kernels(),
    }


def _kernels() -> str:
    for path in (Path(np.__file__).parents[1] / "numpy.libs").glob("*openblas*"):
        library = ctypes.CDLL(str(path))
        for symbol in ("scipy_openblas_get_corename64_", "openblas_get_corename64_"):
            if hasattr(library, symbol):
                function = getattr(library, symbol)
                function.restype = ctypes.c_char_p
                return str(function().decode())
    return "unknown"


@dataclass(frozen=True)
class Place:
    """An interpreter and the variables it is started with."""

    python: str
    core: str = ""
    disabled: tuple[str, ...] = ()
    threads: int = 1

    def ask(self, *arguments: str) -> dict[str, Any] | None:
        """Return what a process there answers; None if this processor lacks the instructions."""
        ours = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES")
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        environment |= {
            "OPENBLAS_NUM_THREADS": str(self.threads),
            "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
        }
        if self.core:
            environment["OPENBLAS_CORETYPE"] = self.core
        if self.disabled:
            environment["NPY_DISABLE_CPU_FEATURES"] = " ".join(self.disabled)
        command = [self.python, "-W", "error", __file__, "--child", *arguments]
        completed = subprocess.run(command, env=environment, capture_output=True, text=True)
        if completed.returncode == -signal.SIGILL:
            return None
        if completed.returncode:
            raise SystemExit(f"{self} ended with {completed.returncode}: {completed.stderr}")
        answer: dict[str, Any] = json.loads(completed.stdout)
        return answer


def places(python: str) -> Iterator[Place]:
    """Yield the interpreter as it is, and then every variation that really changes something.

    These are the other kernels that OpenBLAS takes, fewer instructions, and two threads.
    """
    plain = Place(python)
    here = plain.ask("--about")
    if here is None:
        raise SystemExit(f"numpy does not run in {python}")
    yield plain
    kernels = {here["kernels"]}
    for core in _CORES:
        there = Place(python, core).ask("--about")
        if there is not None and there["kernels"] not in kernels:
            kernels.add(there["kernels"])
            yield Place(python, core)
    usable: list[str] = here["usable"]
    wide = [name for name in usable if name.startswith("AVX512") or name == "X86_V4"]
    fused = [name for name in usable if name in wide or name in ("AVX2", "FMA3", "X86_V3")]
    for fewer in dict.fromkeys(map(tuple, (wide, fused, usable))):
        if fewer:
            yield Place(python, disabled=fewer)
    yield Place(python, threads=2)
    if usable:
        yield Place(python, "Prescott", tuple(usable))
        yield Place(python, "Nehalem", tuple(usable), threads=2)


def without(place: Place, usable: Sequence[str]) -> str:
    """Return in few words which instructions numpy does without there."""
    if not place.disabled:
        return "–"
    if set(place.disabled) == set(usable):
        return "all that can be"
    return f"{place.disabled[0]} and up"


def compared(pythons: Sequence[str], *arguments: str) -> int:
    """Compute everywhere, print a line for each place, and return the exit code."""
    form = "{:<8} {:<12} {:<16} {:>7}  {:<8}  {:<9} {:<9} {:<8} {}"
    controls = ("product32", "product64", "exp32", "exp64")
    print(form.format("numpy", "kernels", "disabled", "threads", "total", *controls))
    answers: list[tuple[str, dict[str, Any]]] = []
    for python in pythons:
        usable: list[str] | None = None
        for place in places(python):
            answer = place.ask(*arguments)
            if answer is None:
                continue  # the kernels are there, but not the instructions they need
            # The first place has all of the interpreter's instructions.
            if usable is None:
                usable = answer["usable"]
            cells = [answer["numpy"], answer["kernels"], without(place, usable), place.threads]
            digests = [total(answer["cases"]), *(answer["control"][name] for name in controls)]
            print(form.format(*cells, *(each[:_SHORT] for each in digests)), flush=True)
            words = f"numpy {cells[0]}, kernels {cells[1]}, disabled {cells[2]}, threads {cells[3]}"
            answers.append((words, answer))
    return verdict(answers)


def verdict(answers: Sequence[tuple[str, dict[str, Any]]]) -> int:
    """Print what the first place found, and where any other differs; return the exit code."""
    first = answers[0][1]
    _print_digests(first)
    counts = []
    for name in first["control"]:
        results = {answer["control"][name] for _, answer in answers}
        counts.append(f"{len(results)} of {name}")
    print(f"\nfloating point, different results: {', '.join(counts)}")
    differences = 0
    for place, answer in answers[1:]:
        for case in sorted(first["cases"].keys() | answer["cases"].keys()):
            if first["cases"].get(case) != answer["cases"].get(case):
                differences += 1
                print(f"DIFFERS: {case}; {place}")
    compared_cases = f"{len(first['cases'])} cases in {len(answers)} environments"
    if differences:
        print(f"{compared_cases}: {differences} differences")
        return 1
    print(f"{compared_cases}: all the same, total {total(first['cases'])}")
    return 0


def _print_digests(answer: dict[str, Any]) -> None:
    """Print a table of shapes by detectors, all rules together."""
    form = "{:<22}" + "{:>15}" * len(DETECTORS)
    print("\nclients×classes×values by detector, all rules together: digest, uploads dropped")
    print(form.format("", *DETECTORS))
    for shape in dict.fromkeys(case.split(" | ")[0] for case in answer["cases"]):
        cells = []
        for name in DETECTORS:
            prefix = f"{shape} | {name} |"
            own = {case: each for case, each in answer["cases"].items() if case.startswith(prefix)}
            dropped = sum(answer["dropped"][case] for case in own)
            cells.append(f"{total(own)[:_SHORT]} {dropped:>4}")
        print(form.format(shape, *cells))


def main() -> int:
    """Compare all environments or, as a child process, compute in this one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="an additional interpreter, with another numpy; repeatable",
    )
    parser.add_argument(
        "--small", action="store_true", help="compute only a few shapes, as the tests do"
    )
    parser.add_argument(
        "--child", action="store_true", help="compute in this process and print JSON"
    )
    parser.add_argument(
        "--about", action="store_true", help="as a child: only report what computes"
    )
    args = parser.parse_args()
    if not args.child:
        arguments = ["--small"] if args.small else []
        return compared([sys.executable, *args.python], *arguments)
    answer = about()
    if not args.about:
        answer["cases"], answer["dropped"] = cases(SMALL if args.small else SHAPES)
        answer["control"] = control()
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
