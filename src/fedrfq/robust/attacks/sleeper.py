"""Sleeper: attackers are honest until they are trusted, and again when they are found. Ours.

They are honest for `sleep` rounds (default 5), which gives them a clean record. Then they make the
attack named by `then` (default "swap"), until a round in which one of them is dropped; after that
they sleep as long again. Without a detector they go on for ever. `strength` is a factor of the
other attack's default strength.

They remember how many rounds they have left to sleep, and what the other attack remembers.

`attack.start_round` only says when they begin to count. Recall counts the rounds in which they
sleep as well: they are malicious, but there is nothing to be found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene
from fedrfq.robust.attacks.by_name import inner_attack
from fedrfq.robust.state import State, inner_state, outer_state


@dataclass(frozen=True)
class Sleeper(Attack):
    """Waits, then makes another attack until it is found."""

    strength: float = option(
        1.0, "Factor of the default strength of the attack that they wake to", STRENGTHS
    )
    sleep: int = option(
        5, "Rounds in which they are honest, at first and after one of them is dropped", "0 or more"
    )
    then: str = option("swap", "Attack that they wake to", "an attack that changes uploads")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._awake()

    def corrupt(self, scene: Scene, state: State, rng: Generator) -> tuple[Uploads, State]:
        asleep = int(state.get("asleep", self.sleep))
        if asleep:
            return scene.uploads, {**state, "asleep": np.array(asleep - 1, np.int64)}
        sent, remembered = self._awake().corrupt(scene, inner_state(state, "then"), rng)
        if not scene.all_kept(sent):
            asleep = self.sleep
        return sent, {
            "asleep": np.array(asleep, np.int64),
            **outer_state(remembered, "then"),
        }

    def _awake(self) -> Attack:
        """Return the attack that they wake to."""
        return inner_attack("attack.then", self.then, self.strength)
