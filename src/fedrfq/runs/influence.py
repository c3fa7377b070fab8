"""What a detector cost honest clients over a run: their weight, and rounds without any."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TypedDict

from fedrfq.experiment import Experiment
from fedrfq.learning.draws import attackers, participants
from fedrfq.learning.evaluation import RoundRecord


class Influence(TypedDict):
    """The figures of a run; None where no honest client sent anything, or records are older."""

    # The mean over the rounds, in percent.
    honest_weight_lost: float | None
    # The most rounds in a row in which an honest client took part and had no weight.
    longest_shut_out: int | None


def influence(experiment: Experiment, records: Sequence[RoundRecord]) -> Influence:
    """Return what the detector cost honest clients."""
    lost = [r.honest_weight_lost for r in records if r.honest_weight_lost is not None]
    if not lost:
        return Influence(honest_weight_lost=None, longest_shut_out=None)
    return Influence(
        honest_weight_lost=fmean(lost), longest_shut_out=_longest_shut_out(experiment, records)
    )


def _longest_shut_out(experiment: Experiment, records: Sequence[RoundRecord]) -> int:
    """Return the longest time that any honest client was shut out.

    A round in which a client takes no part neither counts nor ends the time.
    """
    honest = set(range(experiment.clients)) - set(attackers(experiment))
    out = dict.fromkeys(honest, 0)
    longest = 0
    for record in records:
        without_weight = {*record.filtered, *map(int, record.refused)}
        for client in honest.intersection(participants(experiment, record.round)):
            if client in without_weight:
                out[client] += 1
                longest = max(longest, out[client])
            else:
                out[client] = 0
    return longest
