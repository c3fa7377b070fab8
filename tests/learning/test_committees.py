"""Committees in the round loop: learning is the same whoever lies, and it is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from fedrfq.data import Dataset
from fedrfq.federation import codec
from fedrfq.learning.round_loop import LoopState, RoundLoop, program_key
from fedrfq.simulator.adversaries import BEHAVIOURS
from support.small import CPU, equal, timeless, tiny
from support.small import run as advanced

AGREEING = ("view", "leader", "committee_messages", "committee_bytes", "evidence")
UNDER_ATTACK: dict[str, Any] = {
    "attack": {"name": "scale", "clients": 1, "strength": 9.0},
    "detector": {"name": "adaptive", "malicious": 1},
    "partition": {"ways": 6},
}


def carried(state: LoopState, r: int) -> tuple[bytes, bytes]:
    """What a run's servers leave to the next round."""
    return codec.encode_globals(state.globals_[r]), codec.encode_state(state.memory[r])


def learned(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in AGREEING}


@pytest.mark.parametrize("setting", [{}, UNDER_ATTACK], ids=["peace", "attack"])
def test_every_behaviour_leaves_what_is_learned_as_one_trusted_server_does(
    setting: dict[str, Any], mnist: Dataset
) -> None:
    """All in one stack: each run has a committee of its own."""
    committees: list[dict[str, Any]] = [{"name": "direct"}, {"name": "simulated"}]
    committees += [
        {"name": "simulated", "faulty": 1, "behaviour": behaviour} for behaviour in BEHAVIOURS
    ]
    committees.append({"name": "simulated", "servers": 7, "faulty": 2, "behaviour": "equivocate"})
    state, rows = advanced(
        [tiny(**setting, committee=committee) for committee in committees], mnist, 3
    )
    assert len({carried(state, r) for r in range(len(committees))}) == 1
    for outcomes in rows:
        plain, *others = [timeless(outcome) for outcome in outcomes]
        assert [plain[key] for key in AGREEING] == [None] * 5
        assert all(learned(other) == learned(plain) for other in others)
        assert all(isinstance(other[key], int) for other in others for key in AGREEING)
    if setting:
        assert any(outcomes[0].record.filtered for outcomes in rows)
    assert sum(outcome.record.evidence or 0 for outcomes in rows for outcome in outcomes) > 0


def test_clients_that_stay_away_are_not_waited_for_in_vain(mnist: Dataset) -> None:
    setting: dict[str, Any] = {"participation": 0.5, "train": {"lr": 0.05}}
    committee = {"name": "simulated", "faulty": 1, "behaviour": "silent"}
    plain, found = (
        advanced([tiny(**setting, **more)], mnist, 3) for more in ({}, {"committee": committee})
    )
    assert carried(plain[0], 0) == carried(found[0], 0)
    assert [learned(timeless(a[0])) for a in plain[1]] == [
        learned(timeless(b[0])) for b in found[1]
    ]
    assert found[1][0][0].record.participants == 3


def test_a_committee_is_no_part_of_the_program() -> None:
    assert program_key(tiny()) == program_key(tiny(committee={"name": "simulated"}))


def test_an_advance_leaves_the_state_before_as_it_was(mnist: Dataset) -> None:
    loop = RoundLoop([tiny(committee={"name": "simulated"})], mnist, CPU)
    first, _ = loop.advance(loop.start())
    second = loop.advance(first)[0]
    again = loop.advance(first)[0]
    assert second.agreed == again.agreed != first.agreed
    assert equal(second.params, again.params)
