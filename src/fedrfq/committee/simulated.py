"""Servers that agree on every round over a simulated network, some of them faulty. Keys come from the run's seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

from fedrfq.committee.committee import AgreedRound, Committee, CommitteeSettings
from fedrfq.consensus.messages import Message
from fedrfq.consensus.roster import MOST_SERVERS, faults
from fedrfq.errors import UserError, nearest
from fedrfq.federation import signatures
from fedrfq.federation.federation_file import Federation, Timings
from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.detectors import State

if TYPE_CHECKING:
    from fedrfq.committee.simulated_round import SimulatedRound

TIMINGS = Timings(
    deadline_ms=10_000
)  # of virtual time: longer than any of the networks misbehaves for


@dataclass(frozen=True)
class Simulated(Committee):
    """`faulty` of the servers do what `behaviour` says; `network` names what becomes of messages on their way."""

    servers: int = option(
        4,
        "Servers in the committee; 3f + 1 of them tolerate f faulty ones",
        f"1, or 4 to {MOST_SERVERS}",
    )
    faulty: int = option(
        0, "Servers that are faulty, drawn by the run's seed", "0 to (servers - 1) / 3"
    )
    behaviour: str = option(
        "lie",
        "What faulty servers do",
        "one of silent, crash, twins, equivocate, censor, forge, wrong, mutate, replay, flood, lie, hoard",
    )
    network: str = option(
        "calm", "What happens to messages on their way", "one of calm, lossy, partitioned"
    )

    def __post_init__(self) -> None:
        from fedrfq.simulator.adversaries import BEHAVIOURS
        from fedrfq.simulator.network import NETWORKS

        if self.servers != 1 and not 4 <= self.servers <= MOST_SERVERS:
            raise UserError(
                f"committee.servers is 1, or 4 to {MOST_SERVERS} (3f + 1 bear f faults), not {self.servers}"
            )
        if not 0 <= self.faulty <= faults(self.servers):
            raise UserError(
                f"committee.faulty = {self.faulty} of {self.servers} servers: {faults(self.servers)} at most, "
                f"since with a third or more of them faulty nothing can be agreed on"
            )
        for key, known in (("behaviour", BEHAVIOURS), ("network", NETWORKS)):
            if getattr(self, key) not in known:
                found = getattr(self, key)
                raise UserError(
                    f"committee.{key} is one of {', '.join(known)}, not '{found}'{nearest(found, known)}"
                )

    def about(self) -> str:
        if self.servers == 1:
            return super().about()
        if self.faulty:
            lying = f"{self.faulty} faulty ({self.behaviour})"
        else:
            lying = "none faulty"
        return f"{self.servers} servers, {lying}, on a {self.network} network"

    def federation(self, mandate: CommitteeSettings) -> Federation:
        return _charter(self.servers, mandate)

    def decide(
        self,
        mandate: CommitteeSettings,
        round_: int,
        last: bytes,
        memory: State,
        globals_: Globals,
        uploads: Uploads,
    ) -> AgreedRound:
        """The outcome that a quorum certified. The round before is taken from `last`, where it is certified too."""
        from fedrfq.committee.round_result import round_result

        # what no message can carry is not sent
        sitting = self.sitting(mandate, round_, last)
        sent = uploads.checked()
        return round_result(sitting, sitting.held(sent), sent)

    def carry(
        self, mandate: CommitteeSettings, round_: int, last: bytes, uploads: Mapping[int, Message]
    ) -> AgreedRound:
        """The same of uploads that come signed, by client. None of the clients' keys is needed for it, and what is not
        signed by them the servers ignore."""
        from fedrfq.committee.round_result import round_result, taken

        sitting = self.sitting(mandate, round_, last)
        sent = taken(sitting.rules, mandate.task, round_, uploads)
        if not sent.clients:
            raise UserError(
                f"no upload of round {round_} is one of its client, and the committee waits for one at least"
            )
        return round_result(sitting, sitting.carried(uploads), sent)

    def sitting(self, mandate: CommitteeSettings, round_: int, last: bytes) -> SimulatedRound:
        """The servers, before they hear of the round's uploads."""
        from fedrfq.committee.simulated_round import SimulatedRound
        from fedrfq.simulator.network import NETWORKS

        faulty = frozenset(
            Random(f"{mandate.seed}, faulty").sample(range(self.servers), self.faulty)
        )
        links = NETWORKS[self.network](self.servers)
        return SimulatedRound(
            self.federation(mandate), mandate.seed, round_, last, faulty, self.behaviour, links
        )


@lru_cache(maxsize=64)
def _charter(servers: int, mandate: CommitteeSettings) -> Federation:
    seed = mandate.seed
    task = mandate.task
    own = tuple(signatures.simulated(seed, "server", k).public for k in range(servers))
    clients = tuple(signatures.simulated(seed, "client", k).public for k in range(task.clients))
    return Federation(mandate.experiment, TIMINGS, task, own, clients)
