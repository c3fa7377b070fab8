"""The contracts of what a run has around it: servers that misbehave, and trackers that look on."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

from fedrfq.api.contracts.contract import expect
from fedrfq.api.contracts.example_runs import CPU, MLP, equal, pictures, run, timeless, tiny
from fedrfq.runs.session import Session
from fedrfq.runs.trackers import TRACKERS

_ROUNDS = 2


# Adversaries


def _committee(name: str, network: str) -> dict[str, Any]:
    return {
        "name": "simulated",
        "servers": 4,
        "faulty": 1,
        "behaviour": name,
        "network": network,
    }


def it_changes_nothing_that_is_decided(name: str) -> None:
    """One such server among four changes no model and no prototype, on any network."""
    direct, _ = run([tiny(model=MLP)], pictures(), _ROUNDS)
    for network in ("calm", "lossy"):
        experiment = tiny(model=MLP, committee=_committee(name, network))
        attacked, _ = run([experiment], pictures(), _ROUNDS)
        expect(
            equal(direct.params, attacked.params),
            f"on a {network} network the models end otherwise: found a fault of the protocol?",
        )


def its_lies_are_its_seeds(name: str) -> None:
    """The same seed gives the same messages, so that a run can be repeated."""
    committee = _committee(name, "lossy")
    ends = [run([tiny(model=MLP, committee=committee)], pictures(), _ROUNDS) for _ in range(2)]
    one, other = ([timeless(outcome) for (outcome,) in rows] for _, rows in ends)
    expect(one == other, "the same seed gives another run: draw from self.rng alone")


ADVERSARY_CHECKS = (it_changes_nothing_that_is_decided, its_lies_are_its_seeds)


# Trackers


def _tracked(name: str, out: Path, rounds: int) -> Session:
    track = {"track": name} if name else {}
    experiment = tiny(model=MLP, rounds=rounds, **track)
    return Session.begin([experiment], CPU, out, pictures())


def it_is_told_without_an_error(name: str) -> str | None:
    """It hears of a run's start, rounds and end, and of the run that goes on, without an error."""
    if not TRACKERS[name].installed():
        return f"not here: pip install {TRACKERS[name].package}"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("error", message="the callback .* failed")
        session = _tracked(name, Path(folder), 3)
        next(session.advance())
        session.stop()
        session.close()
        again = Session.resume(session.runs[0].path, CPU, pictures())
        list(again.advance())
        again.finish()
        again.close()
    return None


def looking_on_changes_nothing(name: str) -> str | None:
    """A run that it looks at has the same bytes as one that nobody looks at."""
    if not TRACKERS[name].installed():
        return f"not here: pip install {TRACKERS[name].package}"
    ends = []
    for watcher in (name, ""):
        with tempfile.TemporaryDirectory() as folder:
            session = _tracked(watcher, Path(folder), _ROUNDS)
            list(session.advance())
            records = [record.accuracy_mean for record in session.runs[0].rounds()]
            ends.append((session.loop.experiments[0].hash(), records, session.state.params))
            session.close()
    (hash_, records, params), alone = ends
    expect(hash_ == alone[0], "the run has another hash")
    expect(records == alone[1], "the run has other records")
    expect(equal(params, alone[2]), "the run has other models")
    return None


TRACKER_CHECKS = (it_is_told_without_an_error, looking_on_changes_nothing)
