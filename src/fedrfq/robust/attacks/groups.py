"""Two groups: the attackers make two attacks at once, half of them each. Ours.

The first half makes the attack `first` (default "swap"), the second half `second` (default
"frame"). Neither group knows of the other: it takes the others for honest, sees what they would
send if they were, and foresees the servers' decision as if they sent that. `strength` is a factor
of both attacks' default strengths.

They remember who is in which group, because not everybody takes part in every round: who is new
joins the smaller group, the first one if both are as large. They also remember what their attacks
remember.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene
from fedrfq.robust.attacks.by_name import inner_attack
from fedrfq.robust.state import State, inner_state, outer_state


@dataclass(frozen=True)
class TwoGroups(Attack):
    """Makes two attacks at once."""

    strength: float = option(1.0, "Factor of both attacks' default strengths", STRENGTHS)
    first: str = option("swap", "Attack of the first half", "an attack that changes uploads")
    second: str = option("frame", "Attack of the second half", "an attack that changes uploads")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._attacks()

    def corrupt(self, scene: Scene, state: State, rng: Generator) -> tuple[Uploads, State]:
        clients_K = np.array(scene.uploads.clients, np.int64)
        members = joined(state, clients_K[scene.malicious_K])
        counts_KJ = scene.uploads.counts_KJ.copy()
        values_KJV = scene.uploads.values_KJV.copy()
        remembered: dict[str, Ints] = dict(members)
        for key, attack in self._attacks().items():
            mine_K = scene.malicious_K & np.isin(clients_K, members[key])
            own = replace(scene, malicious_K=mine_K)
            sent, inner = attack.corrupt(own, inner_state(state, key), rng)
            counts_KJ[mine_K] = sent.counts_KJ[mine_K]
            values_KJV[mine_K] = sent.values_KJV[mine_K]
            remembered |= outer_state(inner, key)
        return replace(scene.uploads, counts_KJ=counts_KJ, values_KJV=values_KJV), remembered

    def _attacks(self) -> dict[str, Attack]:
        """Return each group's attack."""
        return {
            "first": inner_attack("attack.first", self.first, self.strength),
            "second": inner_attack("attack.second", self.second, self.strength),
        }


def joined(state: State, clients: Ints) -> dict[str, Ints]:
    """Return who is in each group, once these attackers have joined one."""
    nobody = np.zeros(0, np.int64)
    first = state.get("first", nobody).tolist()
    second = state.get("second", nobody).tolist()
    for client in clients.tolist():
        if client in first or client in second:
            continue
        if len(first) <= len(second):
            first.append(client)
        else:
            second.append(client)
    return {"first": np.array(first, np.int64), "second": np.array(second, np.int64)}
