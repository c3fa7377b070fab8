"""One server that everybody trusts: it decides by itself."""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.committee.committee import Agreed, Committee, Mandate
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import decide
from fedrfq.robust.detectors import State


@dataclass(frozen=True)
class Direct(Committee):
    def decide(
        self,
        mandate: Mandate,
        round_: int,
        last: bytes,
        memory: State,
        globals_: Globals,
        uploads: Uploads,
    ) -> Agreed:
        task = mandate.task
        return Agreed(decide(task.detector, task.rule, memory, globals_, uploads))
