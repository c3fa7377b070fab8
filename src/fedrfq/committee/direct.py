"""One server that everybody trusts: it decides by itself."""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.committee.committee import AgreedRound, Committee, CommitteeSettings
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import decide
from fedrfq.robust.detectors import State


@dataclass(frozen=True)
class Direct(Committee):
    def decide(
        self,
        mandate: CommitteeSettings,
        round_: int,
        last: bytes,
        memory: State,
        globals_: Globals,
        uploads: Uploads,
    ) -> AgreedRound:
        task = mandate.task
        return AgreedRound(decide(task.detector, task.rule, memory, globals_, uploads))
