"""One server that everybody trusts, and that decides by itself."""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.committee.committee import AgreedRound, Committee, CommitteeSettings, PreviousRound
from fedrfq.prototypes.fixed_point import Uploads


@dataclass(frozen=True)
class Direct(Committee):
    """One trusted server."""

    def decide(
        self,
        settings: CommitteeSettings,
        round_: int,
        before: PreviousRound,
        uploads: Uploads,
    ) -> AgreedRound:
        """Decide a round without any agreement."""
        return AgreedRound(settings.task.decide(round_, before.known(), uploads))
