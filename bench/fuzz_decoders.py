"""Fuzz every decoder of what other parties send.

    pip install --target "$DIR" atheris
    PYTHONPATH="$DIR" python bench/fuzz_decoders.py --seconds 60

A decoder must return a result or refuse, accept only one encoding of each value, and use memory in
proportion to its input. Each decoder gets an equal share of the time and starts from valid inputs.
Without atheris, inputs are mutated at random, without guidance by coverage; the first line says
which it was.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

# The modules that atheris instruments.
CODES = [
    "consensus.messages",
    "consensus.wire",
    "federation.codec",
    "federation.round_log",
    "prototypes",
    "errors",
]
# Bytes of an input.
MAX_INPUT = 8192
# A decoder may use this much memory, plus a multiple of the size of its input.
SLACK_BYTES = 2**16
BYTES_PER_INPUT_BYTE = 64


class Codec(NamedTuple):
    """A function that decodes bytes and encodes the result again, and valid inputs for it."""

    recode: Callable[[bytes], bytes]
    seeds: list[bytes]


def codecs() -> dict[str, Codec]:
    """Return all codecs; they are imported here, so that atheris can instrument them."""
    import numpy as np

    from fedrfq.consensus import messages
    from fedrfq.federation import codec, round_log
    from fedrfq.federation.public_task import PublicTask
    from fedrfq.prototypes import fixed_point
    from fedrfq.robust.detectors.detector import FULL, Reason, Verdict
    from fedrfq.robust.detectors.reasons import toward

    wires = _messages()
    values = np.arange(12, dtype=np.int64).reshape(4, 3)
    held = fixed_point.Globals(
        np.array([True, True, True, False]), values * np.array([[1], [1], [1], [0]])
    )
    verdict = Verdict(
        np.array([[FULL, 0, 0], [0, 512, FULL]]),
        np.array([1, -1]),
        np.array([[0, 0, 0], [Reason.FAR, toward(Reason.TOWARD, 2), Reason.COUNT]]),
    )
    entries = ((0, bytes(32)), (1, bytes(32)))
    inputs = messages.Inputs(entries, entries[:1])

    def message(data: bytes) -> bytes:
        decoded = messages.decode(data)
        return messages.encode(decoded.run, decoded.body) + decoded.signature

    few_bits = fixed_point.Precision(5)
    public = PublicTask("random:1", 2.0, few_bits, classes=3, moments=1, values=3)

    def statistics(data: bytes) -> bytes:
        return codec.encode_public(codec.decode_public(data, public) or public.nothing(), public)

    return {
        "messages.decode": Codec(message, wires),
        "messages.Inputs.decode": Codec(
            lambda data: messages.Inputs.decode(data).write(), [inputs.write()]
        ),
        "round_log.unpack": Codec(
            lambda data: round_log.pack(placed.message for placed in round_log.unpack(data)),
            [round_log.pack(map(messages.decode, wires[-3:]))],
        ),
        "codec.decode_globals": Codec(
            lambda data: codec.encode_globals(codec.decode_globals(data, 4, 3)),
            [codec.encode_globals(held)],
        ),
        "codec.decode_verdicts": Codec(
            lambda data: codec.encode_verdicts(*codec.decode_verdicts(data, 3)),
            [codec.encode_verdicts((0, 7), verdict)],
        ),
        "codec.decode_state": Codec(
            lambda data: codec.encode_state(codec.decode_state(data)),
            [codec.encode_state({"a": values, "b": values[0], "c": values[:0]})],
        ),
        "prototypes.decode": Codec(
            lambda data: fixed_point.encode(*fixed_point.decode(data, 4, 3)),
            [fixed_point.encode(1, 2, np.array([3, 0, 1, 9]), values - 5)],
        ),
        "prototypes.decode, 5 bits": Codec(
            lambda data: fixed_point.encode(*fixed_point.decode(data, 4, 3, few_bits), few_bits),
            [fixed_point.encode(1, 2, np.array([3, 0, 1, 9]), values * few_bits.step, few_bits)],
        ),
        "codec.decode_public": Codec(
            statistics,
            [codec.encode_public(replace(held, values_JV=held.values_JV * few_bits.step), public)],
        ),
    }


def _messages() -> list[bytes]:
    """Return one message of every kind, as bytes."""
    from fedrfq.consensus import messages as m

    run = bytes(32)
    name = bytes(range(32))
    record = m.Record(1, *(bytes([i]) * 32 for i in range(7)))

    def message(body: m.AnyMessage) -> m.Message:
        signature = bytes(64) if body.kind in m.SIGNED else b""
        return m.Message(run, body, m.encode(run, body), signature)

    prepared = m.Certificate(
        m.Kind.PREPARE, 0, record, ((0, bytes(64)), (2, bytes(64)), (3, bytes(64)))
    )
    committed = m.Certificate(m.Kind.COMMIT, 1, record, ((1, bytes(64)),))
    listed = message(m.UploadList(1, 2, ((0, name), (5, name)), ((1, name),)))
    change = message(m.ViewChange(1, 1, 2, prepared, committed))
    votes = [message(kind(1, 0, name, 3)) for kind in (m.Prepare, m.Commit)]
    proposal = message(m.PrePrepare(1, 1, 2, record, (listed, listed), (change, change)))
    others = [
        m.Upload(1, 3, b"content"),
        m.ChangeProposal(1, 2, b"content"),
        m.Receipt(1, 2, 3, name),
        m.Cert(1, committed),
        m.Evidence(1, listed, proposal),
        m.Fetch(1, m.PartKind.SET, name),
        m.Part(1, m.PartKind.GLOBALS, b"content"),
    ]
    samples = [listed, change, *votes, proposal, *map(message, others)]
    assert {sample.body.kind for sample in samples} == set(m.Kind)
    return [sample.wire for sample in samples]


def check(codec: Codec, data: bytes) -> None:
    """Check one input; whatever is raised here is a finding."""
    from fedrfq.consensus.wire import Refused
    from fedrfq.errors import UserError

    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        again = codec.recode(data)
    except (Refused, UserError):
        again = data
    used = tracemalloc.get_traced_memory()[1] - before
    if again != data:
        raise AssertionError(f"decoded and encoded again, these bytes become {again.hex()}")
    if used > BYTES_PER_INPUT_BYTE * len(data) + SLACK_BYTES:
        raise AssertionError(f"{used} bytes of memory for an input of {len(data)} bytes")


def watched(name: str, seconds: int, corpus: Path) -> None:
    """Fuzz guided by coverage; does not return."""
    import atheris
    import numpy  # noqa: F401  # not to be watched

    with atheris.instrument_imports(include=[f"fedrfq.{code}" for code in CODES]):
        codec = codecs()[name]
    for number, seed in enumerate(codec.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    tracemalloc.start()
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT}",
        f"-artifact_prefix={corpus}/found-",
        "-rss_limit_mb=2048",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: check(codec, data))
    atheris.Fuzz()


def blind(name: str, seconds: int) -> tuple[int, bytes | None]:
    """Fuzz without guidance; return the executions and the failing input, if any."""
    rng = random.Random(0)
    codec = codecs()[name]
    count = 0
    end = time.monotonic() + seconds
    tracemalloc.start()
    while time.monotonic() < end:
        data = _mutated(rng, rng.choice(codec.seeds))
        count += 1
        try:
            check(codec, data)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
            return count, data
    return count, None


def _mutated(rng: random.Random, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(data))
        size = rng.choice((0, 1, 2, 4, 32))
        kind = rng.choice((bytes, rng.randbytes, lambda n: b"\xff" * n))
        data[start : start + rng.choice((0, size))] = kind(size)
    return bytes(data)


def fuzzed(name: str, seconds: int, guided: bool) -> tuple[int, bytes | None]:
    """Fuzz one decoder; return the executions and the failing input, if any.

    The traceback of a failing input is printed.
    """
    if not guided:
        return blind(name, seconds)
    with tempfile.TemporaryDirectory() as folder:
        options = ["--seconds", str(seconds), "--only", name, "--corpus", folder]
        command = [sys.executable, __file__, *options]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        failing = [path.read_bytes() for path in Path(folder).glob("found-*")]
    runs = re.search(r"Done (\d+) runs", completed.stderr)
    if completed.returncode or runs is None:
        print(completed.stdout[-4000:] + completed.stderr[-4000:])
        # The process may also have died without an input that is to blame.
        return 0, next(iter(failing), b"")
    return int(runs[1]), None


def main() -> int:
    """Fuzz the decoders and print a line for each; return 1 if something was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=int, default=60, help="time for all decoders together (default: 60)"
    )
    parser.add_argument("--only", help="one decoder (default: all)")
    # Given to the child process that atheris takes over.
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.corpus is not None:
        watched(arguments.only, arguments.seconds, arguments.corpus)
    names = list(codecs())
    if arguments.only:
        names = [arguments.only]
    guided = importlib.util.find_spec("atheris") is not None
    share = max(1, arguments.seconds // len(names))
    how = "guided by coverage (atheris)" if guided else "without guidance (no atheris)"
    print(f"{how}, {share} s for each decoder")
    failed = False
    for name in names:
        count, failing = fuzzed(name, share, guided)
        result = "nothing found"
        if failing is not None:
            result = f"FOUND {failing.hex()}"
            failed = True
        print(f"{name:26}{count:>12,} executions   {result}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
