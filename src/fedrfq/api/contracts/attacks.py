"""The contract of attacks: only attackers' rows change, as the seed says, to what can be sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.random import default_rng

from fedrfq.api.contracts.contract import Broken, bounded, expect, same_bytes, whole
from fedrfq.api.contracts.example_scenes import random_scene, scene_of
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.prototypes.fixed_point import Precision, Uploads
from fedrfq.robust.attacks import ATTACKS, Attack, Scene
from fedrfq.robust.state import State

_ROUNDS = 12
WRONG = ({"strength": -0.1}, {"strength": float("nan")}, {"clients": -1}, {"start_round": 0})


def same_uploads(one: Uploads, other: Uploads) -> bool:
    """Return whether two rounds of uploads are the same, to the bit."""
    return (
        one.clients == other.clients
        and same_bytes(one.counts_KJ, other.counts_KJ)
        and same_bytes(one.values_KJV, other.values_KJV)
    )


def _copied(state: State) -> dict[str, bytes]:
    return {name: known.tobytes() for name, known in state.items()}


def attacked(attack: Attack, scene: Scene, state: State, seed: int = 7) -> tuple[Uploads, State]:
    """Return what is sent and remembered, after checking what must hold for every attack."""
    before = _copied(state)
    sent, after = attack.corrupt(scene, state, default_rng(seed))
    expect(_copied(state) == before, "it changed what it remembers in place: return a new state")
    again, after_again = attack.corrupt(scene, state, default_rng(seed))
    expect(same_uploads(sent, again), "the same seed gives other uploads: draw from rng alone")
    expect(_copied(after) == _copied(after_again), "the same seed leaves other memories")
    for name, known in after.items():
        expect(known.dtype == np.int64, f"the state's {name} must be int64, found {known.dtype}")
    whole("counts_KJ", sent.counts_KJ, scene.uploads.counts_KJ.shape)
    whole("values_KJV", sent.values_KJV, scene.uploads.values_KJV.shape)
    expect(
        same_uploads(sent.only(~scene.malicious_K), scene.honest),
        "rows of honest clients were changed: change rows of scene.malicious_K alone",
    )
    expect(
        (sent.clients, sent.precision) == (scene.uploads.clients, scene.uploads.precision),
        "clients or precision were changed",
    )
    refused = sent.checked().refused
    expect(not refused, f"a server refuses what is sent: {next(iter(refused.values()), '')}")
    return sent, after


def settings_out_of_range_are_refused(name: str) -> None:
    """Settings out of range are refused in one line."""
    for wrong in WRONG:
        try:
            ATTACKS[name](**wrong)
        except UserError:
            continue
        raise Broken(f"{wrong} was taken: call super().__post_init__()")


def only_attackers_change(name: str) -> None:
    """Only rows of attackers change, by the seed alone, and they fit into messages of any bits."""
    for bits in (8, 16, 24):
        attacked(ATTACKS[name](), random_scene(precision=Precision(bits)), {})


def any_strength_can_be_sent(name: str) -> str | None:
    """At strengths of 0, 1,000 and a million, what is sent stays within a message's range."""
    for strength in (0.0, 1e3, 1e6):
        try:
            attack = ATTACKS[name](strength=strength)
        except UserError as error:
            return str(error)
        with np.errstate(over="ignore"):
            attacked(attack, random_scene(), {})
    return None


def nothing_happens_without_attackers(name: str) -> None:
    """Without attackers, and without clients, nothing is changed."""
    for scene in (random_scene(malicious=()), scene_of(np.zeros((0, 3)), np.zeros((0, 3, 2)), ())):
        sent, _ = attacked(ATTACKS[name](), scene, {})
        expect(same_uploads(sent, scene.uploads), "uploads changed, and nobody attacks")


def labels_are_poisoned_by_the_seed(name: str) -> None:
    """Poisoned labels are classes, by the seed alone, and the client's own stay as they are."""
    labels = default_rng(0).choice(np.array([1, 4, 5]), 60)
    labels.setflags(write=False)
    poisoned, again = (ATTACKS[name]().poison(labels, 10, default_rng(3)) for _ in range(2))
    whole("labels", poisoned, labels.shape)
    expect(same_bytes(poisoned, again), "the same seed gives other labels: draw from rng alone")
    expect(((poisoned >= 0) & (poisoned < 10)).all(), "a label is not one of the classes")


def memories_are_bounded(name: str) -> None:
    """What attackers remember is integers and does not grow with every round."""
    state: State = {}
    sizes = []
    for number in range(1, _ROUNDS + 1):
        scene = replace(random_scene(number), round=number)
        _, state = attacked(ATTACKS[name](), scene, state)
        sizes.append(len(codec.encode_state(state)))
    bounded(sizes)


ATTACK_CHECKS = (
    settings_out_of_range_are_refused,
    only_attackers_change,
    any_strength_can_be_sent,
    nothing_happens_without_attackers,
    labels_are_poisoned_by_the_seed,
    memories_are_bounded,
)
