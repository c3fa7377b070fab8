"""Fuzz every decoder of what others sent: a result or a refusal, one encoding of each, memory bounded by the input.

    pip install --target "$DIR" atheris
    PYTHONPATH="$DIR" python bench/fuzz_decoders.py --seconds 60

Each decoder gets an equal share of the time, and starts from valid inputs. Without atheris, inputs are mutated at random,
blind to the code they reach; the table says which it was.
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
from pathlib import Path
from typing import NamedTuple

CODES = [
    "consensus.messages",
    "consensus.wire",
    "committee.layouts",
    "committee.journal",
    "prototypes",
    "errors",
]
LONGEST = 8192
# bytes of memory: a constant, and so many a byte of input
SLACK = 2**16
MULTIPLE = 64


class Codec(NamedTuple):
    """Decodes and encodes again, and valid inputs to start from."""

    again: Callable[[bytes], bytes]
    seeds: list[bytes]


def codecs() -> dict[str, Codec]:
    """All of them; imported here, so that atheris can watch what is imported."""
    import numpy as np

    from fedrfq.consensus import messages
    from fedrfq.federation import codec as layouts
    from fedrfq.federation import round_log
    from fedrfq.prototypes import fixed_point
    from fedrfq.robust.detectors.detector import Verdict

    said = _messages()
    values = np.arange(12, dtype=np.int64).reshape(4, 3)
    held = fixed_point.Globals(
        np.array([True, True, True, False]), values * np.array([[1], [1], [1], [0]])
    )
    verdict = Verdict(np.array([True, False]), np.array([1, -1]))
    entries = ((0, bytes(32)), (1, bytes(32)))

    def message(data: bytes) -> bytes:
        found = messages.decode(data)
        return messages.encode(found.run, found.body) + found.signature

    def verdicts(data: bytes) -> bytes:
        again = layouts.encode_verdicts(*layouts.decode_verdicts_without_successor(data))
        following = layouts.successor_in(data)
        if following:
            return layouts.append_successor(again, following)
        return again

    return {
        "messages.decode": Codec(message, said),
        "messages.decode_entries": Codec(
            lambda data: messages.write_entries(messages.decode_entries(data)),
            [messages.write_entries(entries)],
        ),
        "journal.unpacked": Codec(
            lambda data: round_log.pack(placed.message for placed in round_log.unpack(data)),
            [round_log.pack(map(messages.decode, said[-3:]))],
        ),
        "layouts.decode_globals": Codec(
            lambda data: layouts.encode_globals(layouts.decode_globals(data, 4, 3)),
            [layouts.encode_globals(held)],
        ),
        "layouts.decode_verdicts": Codec(
            verdicts,
            [
                rows := layouts.encode_verdicts((0, 7), verdict),
                layouts.append_successor(rows, b"the next federation"),
            ],
        ),
        "layouts.decode_state": Codec(
            lambda data: layouts.encode_state(layouts.decode_state(data)),
            [layouts.encode_state({"a": values, "b": values[0], "c": values[:0]})],
        ),
        "prototypes.decode": Codec(
            lambda data: fixed_point.encode(*fixed_point.decode(data, 4, 3)),
            [fixed_point.encode(1, 2, np.array([3, 0, 1, 9]), values - 5)],
        ),
    }


def _messages() -> list[bytes]:
    """One of every kind."""
    from fedrfq.consensus import messages as m

    run = bytes(32)
    name = bytes(range(32))
    record = m.Record(1, *(bytes([i]) * 32 for i in range(5)))

    def said(body: m.AnyMessage) -> m.Message:
        return m.Message(
            run, body, m.encode(run, body), bytes(64) if body.kind in m.SIGNED else b""
        )

    prepared = m.Certificate(
        m.Kind.PREPARE, 0, record, ((0, bytes(64)), (2, bytes(64)), (3, bytes(64)))
    )
    committed = m.Certificate(m.Kind.COMMIT, 1, record, ((1, bytes(64)),))
    listed = said(m.UploadList(1, 2, ((0, name), (5, name))))
    change = said(m.ViewChange(1, 1, 2, prepared, committed))
    votes = [said(kind(1, 0, name, 3)) for kind in (m.Prepare, m.Commit)]
    proposal = said(m.PrePrepare(1, 1, 2, record, (listed, listed), (change, change)))
    others = [
        m.Upload(1, 3, b"content"),
        m.Receipt(1, 2, 3, name),
        m.Cert(1, committed),
        m.Evidence(1, listed, proposal),
        m.Fetch(1, m.PartKind.SET, name),
        m.Part(1, m.PartKind.GLOBALS, b"content"),
    ]
    found = [listed, change, *votes, proposal, *map(said, others)]
    assert {message.body.kind for message in found} == set(m.Kind)
    return [message.wire for message in found]


def check(codec: Codec, data: bytes) -> None:
    """One input. What is raised here is a finding."""
    from fedrfq.consensus.wire import Refused
    from fedrfq.errors import UserError

    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        again = codec.again(data)
    except (Refused, UserError):
        again = data
    used = tracemalloc.get_traced_memory()[1] - before
    if again != data:
        raise AssertionError(f"these bytes encode again as {again.hex()}")
    if used > MULTIPLE * len(data) + SLACK:
        raise AssertionError(f"{used} bytes allocated for {len(data)}")


def watched(name: str, seconds: int, corpus: Path) -> None:
    """Guided by coverage; does not return."""
    import atheris
    import numpy  # noqa: F401  # not to be watched

    with atheris.instrument_imports(include=[f"fedrfq.{code}" for code in CODES]):
        codec = codecs()[name]
    for number, seed in enumerate(codec.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    tracemalloc.start()
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST}",
        f"-artifact_prefix={corpus}/found-",
        "-rss_limit_mb=2048",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: check(codec, data))
    atheris.Fuzz()


def blind(name: str, seconds: int) -> tuple[int, bytes | None]:
    """Without coverage: executions, and the input that was found, if any."""
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
    """Executions, and the input that was found, if any; its traceback is printed."""
    if not guided:
        return blind(name, seconds)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            __file__,
            "--seconds",
            str(seconds),
            "--only",
            name,
            "--corpus",
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [path.read_bytes() for path in Path(folder).glob("found-*")]
    runs = re.search(r"Done (\d+) runs", done.stderr)
    if done.returncode or runs is None:
        print(done.stdout[-4000:] + done.stderr[-4000:])
        return 0, found[0] if found else b""
    return int(runs[1]), None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="in all")
    parser.add_argument("--only", help="one decoder")
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.corpus is not None:
        watched(arguments.only, arguments.seconds, arguments.corpus)
    guided = importlib.util.find_spec("atheris") is not None
    if arguments.only:
        names = [arguments.only]
    else:
        names = list(codecs())
    share = max(1, arguments.seconds // len(names))
    print(
        f"{'guided by coverage (atheris)' if guided else 'blind (no atheris)'}, {share} s for each decoder"
    )
    bad = 0
    for name in names:
        count, found = fuzzed(name, share, guided)
        print(
            f"{name:26}{count:>12,} executions   {'nothing found' if found is None else 'FOUND ' + found.hex()}",
            flush=True,
        )
        bad += found is not None
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
