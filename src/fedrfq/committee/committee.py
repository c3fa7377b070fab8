"""What a committee is to the round loop: it takes a round's uploads and gives back what was decided, with what is known of
how it came about. Nothing of it changes in between: what one round leaves to the next is a value like any other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedrfq.federation.application import Task
from fedrfq.federation.federation_file import Federation
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.detectors import State


@dataclass(frozen=True)
class CommitteeSettings:
    """What a run asks of its committee, in every round: the task, and what keys and the run's id are made of."""

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
    length: int  # … of all of them, in bytes
    evidence: int  # proofs that somebody misbehaved
    entry: bytes  # of audit.log
    bodies: bytes  # … and of bodies.bin


@dataclass(frozen=True)
class AgreedRound:
    """A round's decision; `last` is what the committee goes on from, and the report is missing where nobody had to agree."""

    decision: Decision
    last: bytes = b""
    report: AgreementReport | None = None


@dataclass(frozen=True)
class Committee(ABC):
    """Fields are the options of the experiment's section."""

    def federation(self, mandate: CommitteeSettings) -> Federation | None:
        """By what its decisions can be checked; none where one has to believe it."""
        return None

    def about(self) -> str:
        """Who it is, in a few words."""
        return "one server, trusted"

    @abstractmethod
    def decide(
        self,
        mandate: CommitteeSettings,
        round_: int,
        last: bytes,
        memory: State,
        globals_: Globals,
        uploads: Uploads,
    ) -> AgreedRound:
        """Round `round_`'s outcome, after one that left `last` (nothing before the first), the detector's memory and the
        global prototypes."""
