"""The result of a run: the last round's figures, and totals over all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrfq.experiment import Experiment, name_of
from fedrfq.learning.all_classes import COMMON_COLUMNS
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.methods import METHODS
from fedrfq.runs.influence import influence
from fedrfq.runs.run_directory import RunDirectory

# What a result has of the last test on all classes, besides the figures of each way to predict.
_MORE_ON_ALL_CLASSES = ("accuracy_all_worst", "answered", "accuracy_answered", "recall")


def summary(
    run: RunDirectory, experiment: Experiment, silhouettes: tuple[float, float] | tuple[None, None]
) -> dict[str, Any]:
    """Return what result.json holds and `--json` prints.

    `silhouettes` are those of the pooled and of the unpooled features.
    """
    records = run.rounds()
    last = records[-1]
    seconds_train = sum(record.seconds_train for record in records)
    return {
        "method": name_of(METHODS, experiment.method),
        "data": experiment.data.name,
        "seed": experiment.seed,
        "clients": experiment.clients,
        "rounds": last.round,
        "accuracy_mean": last.accuracy_mean,
        "accuracy_std": last.accuracy_std,
        "prototype_accuracy_mean": last.prototype_accuracy_mean,
        "prototype_failure": last.prototype_failure,
        "honest_accuracy_mean": last.honest_accuracy_mean,
        "honest_prototype_accuracy_mean": last.honest_prototype_accuracy_mean,
        **{name: getattr(last, name) for name in (*COMMON_COLUMNS, *_MORE_ON_ALL_CLASSES)},
        **detection(records),
        **influence(experiment, records),
        "silhouette": silhouettes[0],
        "silhouette_unpooled": silhouettes[1],
        "parameters_per_round": last.parameters_up,
        "bytes_per_round": last.bytes_up,
        # Of all clients in all rounds, statistics on a public map included.
        "bytes_up_total": sum(record.bytes_up for record in records),
        "bytes_down_total": sum(record.bytes_down for record in records),
        "public_map": experiment.public.identity() or None,
        "collapsed_clients": last.collapsed_clients,
        **agreement(records),
        "samples_per_second": sum(record.samples for record in records) / seconds_train,
        "seconds": sum(record.seconds for record in records),
        "run_dir": str(run.path),
    }


def detection(records: Sequence[RoundRecord]) -> dict[str, float | None]:
    """Return the detector's precision and recall over all rounds.

    Precision is the share of dropped uploads that were attackers', recall the share of attackers'
    uploads that were dropped. Either is None where there was nothing to divide by.
    """
    dropped_attacks = sum(record.attackers_filtered for record in records)
    attacks = sum(record.attackers for record in records)
    dropped = sum(len(record.filtered) + len(record.refused) for record in records)
    return {
        "detector_precision": dropped_attacks / dropped if dropped else None,
        "detector_recall": dropped_attacks / attacks if attacks else None,
    }


def agreement(records: Sequence[RoundRecord]) -> dict[str, int | None]:
    """Return what agreement took over all rounds; None with a single trusted server."""
    totals = {
        "view_changes": [record.view for record in records],
        "evidence": [record.evidence for record in records],
        "committee_messages": [record.committee_messages for record in records],
        "committee_bytes": [record.committee_bytes for record in records],
    }
    # Records of a direct server have no view.
    if any(record.view is None for record in records):
        return dict.fromkeys(totals)
    return {name: sum(number or 0 for number in numbers) for name, numbers in totals.items()}
