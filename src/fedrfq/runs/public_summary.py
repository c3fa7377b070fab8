"""What a run exchanges on a public map, as labelled rows for people to read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrfq.data.partition import Partition
from fedrfq.experiment import Experiment, name_of
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.public.exchange import public_task
from fedrfq.models.public_maps import PUBLIC_MAPS, PublicMap
from fedrfq.prototypes.fixed_point import size

Rows = list[tuple[str, str]]


def origin_rows(map_: PublicMap) -> Rows:
    """Return what operators read before they agree on a map; nothing without one."""
    if not map_.used:
        return []
    return [
        ("map", _about(map_)),
        ("who vouches for it", map_.source),
        ("licence", map_.licence),
        ("hash", map_.identity()),
    ]


def exchange_rows(experiment: Experiment, records: Sequence[RoundRecord]) -> Rows:
    """Return rows on the map and on what one client sent and got; nothing without a map."""
    map_ = experiment.public
    if not map_.used:
        return []
    rows = [("public map", _about(map_))]
    exchanges = [record for record in records if map_.due(record.round)]
    if exchanges:
        rows.append(("exchanged on it", _exchanged(exchanges)))
    return rows


def planned_rows(experiment: Experiment, partition: Partition, classes: int) -> Rows:
    """Return rows on the map and on what one client will send and get; nothing without a map."""
    map_ = experiment.public
    task = public_task(map_, classes)
    if task is None:
        return []
    rounds = [number for number in range(1, experiment.rounds + 1) if map_.due(number)]
    # A client sends a row for each class it holds, and gets one for each that anybody holds.
    held_K = np.array([len(own) for own in partition.classes])
    known = len(np.unique(np.concatenate(partition.classes)))
    up = size(held_K + task.moments, task.values, task.precision) / len(held_K)
    down = size(np.array([known + task.moments]), task.values, task.precision)
    return [("public map", _about(map_)), ("exchanged on it", _cost(rounds, up, down))]


def other_rounds(experiment: Experiment, records: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the rounds in which clients uploaded what the method says, and no statistics."""
    return [record for record in records if not experiment.public.due(record.round)]


def _about(map_: PublicMap) -> str:
    """Say which map it is, and in which form statistics on it travel."""
    statistics = "class means"
    if map_.moments != "none":
        statistics = "class means and second moments"
    form = f"{map_.values():,} values at {map_.bits} bits"
    return f"{name_of(PUBLIC_MAPS, map_)}, {form}; {statistics}"


def statistics_bytes(record: RoundRecord) -> tuple[int, int]:
    """Return the bytes of a round's statistics, from all clients and to all clients."""
    up = record.public_bytes_up
    down = record.public_bytes_down
    if up is None or down is None:
        # An older record has one count for all that travels.
        return record.bytes_up, record.bytes_down
    return up, down


def _exchanged(exchanges: Sequence[RoundRecord]) -> str:
    """Say when statistics were exchanged, and what the newest exchange cost one client."""
    last = exchanges[-1]
    up, down = statistics_bytes(last)
    # All clients together, so the mean: clients with more classes send more.
    clients = max(last.participants, 1)
    return _cost([record.round for record in exchanges], up / clients, down / clients)


def _cost(rounds: Sequence[int], bytes_up: float, bytes_down: float) -> str:
    when = f"once, in round {rounds[-1]}"
    if len(rounds) > 1:
        when = f"in {len(rounds)} rounds, each time"
    return f"{when}: {bytes_up:,.0f} bytes up and {bytes_down:,.0f} bytes down for one client"
