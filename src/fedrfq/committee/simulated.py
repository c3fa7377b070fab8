"""Servers that agree on every round over a simulated network, some of them faulty.

All keys follow from the run's seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

from fedrfq.committee.committee import AgreedRound, Committee, CommitteeSettings, PreviousRound
from fedrfq.consensus.messages import Message
from fedrfq.consensus.roster import MAX_SERVERS, faults
from fedrfq.errors import UserError, check_one_of
from fedrfq.federation import signatures
from fedrfq.federation.federation_file import Federation, Timings
from fedrfq.files.options import check_ranges, option
from fedrfq.prototypes.fixed_point import Uploads

if TYPE_CHECKING:
    from fedrfq.committee.simulated_round import SimulatedRound

# In virtual time, and longer than any of the networks misbehaves.
TIMINGS = Timings(deadline_ms=10_000)


@dataclass(frozen=True)
class Simulated(Committee):
    """A simulated committee.

    `faulty` of the servers behave as `behaviour` says, and `network` names what happens to
    messages on their way.
    """

    servers: int = option(
        4,
        "Servers in the committee; 3f + 1 of them tolerate f faulty ones",
        f"1, or 4 to {MAX_SERVERS}",
    )
    faulty: int = option(
        0, "Servers that are faulty, drawn by the run's seed", "0 to (servers - 1) / 3"
    )
    behaviour: str = option(
        "lie",
        "What faulty servers do",
        "one of silent, crash, twins, equivocate, censor, forge, wrong, mutate, replay, flood, "
        "lie, hoard, incriminate, missign, or a plugin's",
    )
    network: str = option(
        "calm", "What happens to messages on their way", "one of calm, lossy, partitioned"
    )

    def __post_init__(self) -> None:
        # Imported here, as in the methods below: the simulator is not needed to read an experiment
        # with another committee.
        from fedrfq.simulator.adversaries import BEHAVIOURS

        check_ranges("committee", self)
        max_faulty = faults(self.servers)
        if self.faulty > max_faulty:
            raise UserError(
                f"committee.faulty = {self.faulty} of {self.servers} servers: {max_faulty} at most,"
                " because with a third or more of them faulty no agreement is possible"
            )
        check_one_of("committee.behaviour", self.behaviour, BEHAVIOURS, plugins=True)

    def about(self) -> str:
        """Describe the committee in a few words."""
        if self.servers == 1:
            return super().about()
        faulty = "none faulty"
        if self.faulty:
            faulty = f"{self.faulty} faulty ({self.behaviour})"
        return f"{self.servers} servers, {faulty}, on a {self.network} network"

    def federation(self, settings: CommitteeSettings) -> Federation:
        """Return the federation by which decisions can be checked."""
        return _federation(self.servers, settings)

    def decide(
        self,
        settings: CommitteeSettings,
        round_: int,
        before: PreviousRound,
        uploads: Uploads,
    ) -> AgreedRound:
        """Return the outcome that a quorum certified.

        What the previous round left is taken from `before.last`, where it is certified too.
        """
        from fedrfq.committee.round_result import round_result

        simulated_round = self.simulated_round(settings, round_, before.last)
        # Uploads that no message could carry are refused here, as nobody could send them.
        sent = uploads.checked(settings.task.form(round_).bound)
        return round_result(simulated_round, simulated_round.run(sent), sent)

    def carry(
        self, settings: CommitteeSettings, round_: int, last: bytes, uploads: Mapping[int, Message]
    ) -> AgreedRound:
        """Decide a round on uploads that their clients have signed, by client.

        This takes none of the clients' keys, and the servers ignore what the clients did not sign.
        """
        from fedrfq.committee.round_result import round_result, signed_uploads

        simulated_round = self.simulated_round(settings, round_, last)
        sent = signed_uploads(simulated_round.rules, settings.task, round_, uploads)
        if not sent.clients:
            raise UserError(
                f"no upload of round {round_} was signed by its client for this round, but the"
                " committee needs at least one: check which keys the clients sign with"
            )
        return round_result(simulated_round, simulated_round.run_signed(uploads), sent)

    def simulated_round(
        self, settings: CommitteeSettings, round_: int, last: bytes
    ) -> SimulatedRound:
        """Return a round in which the servers have not yet received any upload."""
        from fedrfq.committee.simulated_round import SimulatedRound
        from fedrfq.simulator.network import NETWORKS

        # The same servers are faulty in every round of a run.
        rng = Random(f"{settings.seed}, faulty")
        return SimulatedRound(
            federation=self.federation(settings),
            seed=settings.seed,
            round=round_,
            last=last,
            faulty=frozenset(rng.sample(range(self.servers), self.faulty)),
            behaviour=self.behaviour,
            links=NETWORKS[self.network](self.servers),
        )


# Cached, because every round asks for it and deriving all keys takes long.
@lru_cache(maxsize=64)
def _federation(servers: int, settings: CommitteeSettings) -> Federation:
    seed = settings.seed
    task = settings.task
    server_keys = tuple(signatures.simulated(seed, "server", k).public for k in range(servers))
    client_keys = tuple(signatures.simulated(seed, "client", k).public for k in range(task.clients))
    return Federation(settings.experiment, TIMINGS, task, server_keys, client_keys)
