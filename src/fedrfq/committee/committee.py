"""What the round loop sees of a committee: a round's uploads go in, what was decided comes out.

A committee keeps no state. What one round leaves to the next is a value like any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from fedrfq.federation.application import Memory, Task
from fedrfq.federation.federation_file import Federation
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.detectors import State


@dataclass(frozen=True)
class CommitteeSettings:
    """What a run asks of its committee in every round.

    The seed and the experiment determine the keys and the run's id.
    """

    task: Task
    seed: int
    experiment: str  # its digest, in hex


@dataclass(frozen=True)
class AgreementReport:
    """How a round was agreed on, and what proves it."""

    run: bytes  # the run's id
    view: int
    leader: int
    messages: int  # sent among servers and clients
    length: int  # bytes of all these messages
    evidence: int  # proofs that somebody misbehaved
    entry: bytes  # for audit.log
    bodies: bytes  # for bodies.bin


@dataclass(frozen=True)
class AgreedRound:
    """A round's decision.

    `last` is what the committee goes on from in the next round. There is no report where one server
    decided by itself.
    """

    decision: Decision
    last: bytes = b""
    report: AgreementReport | None = None


class PreviousRound(NamedTuple):
    """What a round leaves to the next one."""

    last: bytes  # to the committee; b"" before the first round
    memory: State  # to the detector and the rule
    globals_: Globals  # to the clients
    # To the clients too: the statistics on the public feature map, if there are any yet.
    public: Globals | None = None

    @staticmethod
    def start(task: Task) -> PreviousRound:
        """Return what the first round starts from."""
        return PreviousRound(b"", task.start_state(), Globals.none(task.classes, task.values))

    def known(self) -> Memory:
        """Return what servers decide the next round from."""
        return Memory(self.memory, self.globals_, self.public)


@dataclass(frozen=True)
class Committee(ABC):
    """A kind of committee; its fields are the options of the experiment's committee section."""

    def federation(self, settings: CommitteeSettings) -> Federation | None:
        """Return the federation by which to check decisions; None where they must be trusted."""
        return None

    def about(self) -> str:
        """Describe the committee in a few words."""
        return "one server, trusted"

    @abstractmethod
    def decide(
        self,
        settings: CommitteeSettings,
        round_: int,
        before: PreviousRound,
        uploads: Uploads,
    ) -> AgreedRound:
        """Decide a round, given what the round before it left.

        In a round in which `settings.task.public` is due, the uploads are statistics on the public
        feature map. They go into `decision.public`, and everything else stays.
        """
