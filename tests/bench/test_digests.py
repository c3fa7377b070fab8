"""Decisions are the same to the bit with other kernels and instructions, and as before."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrfq.consensus.events import Outcome
from fedrfq.federation import codec, decisions
from fedrfq.federation.application import Task
from fedrfq.federation.federation_file import Federation, Timings, experiment_digest
from fedrfq.federation.members import Member, Members
from fedrfq.federation.reconfiguration import inherited_by
from fedrfq.federation.retained import retaining
from fedrfq.federation.signatures import Ed25519Signer
from fedrfq.files import toml
from fedrfq.prototypes.fixed_point import FULL_PRECISION
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.robust.state import RETAINED
from support.committees import CLASSES, PUBLIC, TABLE, VALUES
from support.paths import BENCH

_BENCH = BENCH / "digests.py"
_DETECTORS = ("none", "bft", "bft-mean", "median", "trimmed", "medoid", "adaptive")
_RULES = ("weighted", "mean", "paper", "median", "trimmed")
# For each version of the decisions, the digests of all of them by these detectors and rules,
# whatever is registered beside them, and of what the run after a change starts from. They differ?
# Then servers with this program would not agree with servers of the release before. If that is
# meant: until the first version is released (CHANGELOG.md), put the new digests in its place; from
# then on add a version here and in `fedrfq.federation.decisions`, and leave the line of a released
# version as it is for good.
_PINNED = {
    1: (
        "87ff959d27a9e133ef99740177ef3ed71234779be6a1fef84dc51ac4b96b52cc",
        "b6a8571ef14d2818d07ac0b26f240a9d33eb3a76f345b2afe310fcea7439294f",
    ),
}
_CHANGED = "servers would decide otherwise than before: see the comment on _PINNED"


@pytest.fixture(scope="module")
def digests() -> Any:
    spec = importlib.util.spec_from_file_location("digests", _BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look there.
    sys.modules["digests"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plain(digests: Any) -> Any:
    return digests.Place(sys.executable).ask("--small")


def pinned_cases(answer: Any) -> dict[str, str]:
    """Return the digests of the cases, "shape | detector | rule", that are made of known parts."""
    pinned = {}
    for case, digest in answer["cases"].items():
        _, detector, rule = case.split(" | ")
        if detector in _DETECTORS and rule in _RULES:
            pinned[case] = digest
    return pinned


def test_the_decisions_are_what_they_were(digests: Any, plain: Any) -> None:
    decided = len(digests.RULES) * len(digests.SMALL)
    exchanged = len(digests.STATISTICS)
    assert len(plain["cases"]) == len(digests.DETECTORS) * (decided + exchanged)
    pinned = pinned_cases(plain)
    assert len(pinned) == len(_DETECTORS) * (len(_RULES) * len(digests.SMALL) + exchanged)
    assert max(_PINNED) == decisions.VERSION
    assert digests.total(pinned) == _PINNED[decisions.VERSION][0], _CHANGED


def federation(clients: Sequence[int], follows: str = "") -> Federation:
    """Return a federation of one server and some clients on a network, always the same."""
    parties = ["server", *(f"client-{k}" for k in clients)]
    keys = [Ed25519Signer(hashlib.sha256(name.encode()).digest()).public for name in parties]
    members = [Member(name, "", name.encode()) for name in parties]
    members[0] = replace(members[0], address="h:1")
    network = Members(follows, toml.dump(TABLE), tuple(members))
    public = replace(PUBLIC, revocable=True)
    task = Task(AdaptiveDetector(), "median", FULL_PRECISION, len(clients), CLASSES, VALUES, public)
    digest = experiment_digest(TABLE)
    return Federation(digest, Timings(), task, tuple(keys[:1]), tuple(keys[1:]), network)


def test_a_run_after_a_change_starts_from_what_it_did(digests: Any) -> None:
    """The second client leaves, and there is another one before the third."""
    old = federation((0, 1, 2))
    new = federation((0, 3, 2), old.roster.run.hex())
    kept = {client: b"statistics of %d" % client for client in range(3)}
    state = {**old.task.start_state(), **retaining(kept)}
    for number, (name, array) in enumerate(sorted(state.items())):
        if not name.startswith(RETAINED):
            state[name] = array + digests.drawn(f"{number}", *array.shape)
    outcome = Outcome(b"prototypes", b"verdicts", codec.encode_state(state), b"", b"statistics")
    inherited = digests.digest(inherited_by(old, outcome, new))
    assert inherited == _PINNED[decisions.VERSION][1], _CHANGED


def test_other_kernels_and_instructions_decide_alike(digests: Any, plain: Any) -> None:
    oldest = digests.Place(sys.executable, "Prescott", tuple(plain["usable"])).ask("--small")
    threads = digests.Place(sys.executable, "Nehalem", threads=2).ask("--small")
    assert oldest["usable"] == []
    assert plain["cases"] == oldest["cases"] == threads["cases"]


def test_every_case_is_one_of_its_own_and_something_is_dropped(digests: Any, plain: Any) -> None:
    """Otherwise equal digests would say little."""
    pinned = pinned_cases(plain)
    filtered = {case: found for case, found in pinned.items() if "| none |" not in case}
    assert len(set(filtered.values())) == len(filtered)
    assert all(plain["dropped"][case] > 0 for case in filtered)


def test_a_difference_is_told(digests: Any, plain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(iter(plain["cases"]))
    other = {**plain, "cases": {**plain["cases"], case: "0"}}
    assert digests.verdict([("here", plain), ("there", plain)]) == 0
    assert "2 environments: all the same" in capsys.readouterr().out
    assert digests.verdict([("here", plain), ("there", other)]) == 1
    assert f"DIFFERS: {case}; there" in capsys.readouterr().out


def test_digests_are_canonical(digests: Any) -> None:
    """The numbers drawn, their bytes and the layout that is hashed, by hand."""
    assert (
        digests.drawn("a", 2).tolist()
        == np.frombuffer(hashlib.shake_256(b"a").digest(8), "<u4").tolist()
    )
    decision = next(digests.decisions("adaptive", "mean", digests.SMALL[0]))
    parts = list(digests.canonical(decision))
    assert json.loads(parts[0]) == []
    names = [part.decode().split()[0] for part in parts[1::2]]
    judged = ["reason", "score", "state.record", "values", "weight"]
    assert names == ["clients", "counts", "present", *judged]
    assert parts[2] == b"".join(client.to_bytes(8, "little") for client in decision.uploads.clients)
