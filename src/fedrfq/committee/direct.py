"""One server that everybody trusts, and that decides by itself."""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.committee.committee import AgreedRound, Committee, CommitteeSettings
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import decide
from fedrfq.robust.detectors import State


@dataclass(frozen=True)
class Direct(Committee):
    """One trusted server."""

    def decide(
        self,
        settings: CommitteeSettings,
        round_: int,
        last: bytes,
        memory: State,
        globals_: Globals,
        uploads: Uploads,
    ) -> AgreedRound:
        """Decide a round without any agreement."""
        task = settings.task
        return AgreedRound(decide(task.detector, task.rule, memory, globals_, uploads))
