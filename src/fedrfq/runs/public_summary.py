"""What a run exchanged on a public map, as labelled rows for people to read."""

from __future__ import annotations

from collections.abc import Sequence

from fedrfq.experiment import Experiment, name_of
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.models.public_maps import PUBLIC_MAPS, PublicMap

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
        rows.append(("exchanged on it", _exchanged(experiment, exchanges)))
    return rows


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


def _exchanged(experiment: Experiment, exchanges: Sequence[RoundRecord]) -> str:
    """Say when statistics were exchanged, and what the newest exchange cost one client."""
    last = exchanges[-1]
    when = f"once, in round {last.round}"
    if len(exchanges) > 1:
        when = f"in {len(exchanges)} rounds, each time"
    # All clients together, so the mean: clients with more classes send more.
    clients = max(last.participants, 1)
    included = ""
    if experiment.method.centres:
        # Models are averaged in this round too, and a record has one count for all that travels.
        included = ", the model's parameters included"
    return (
        f"{when}: {last.parameters_up / clients:,.0f} values, {last.bytes_up / clients:,.0f} bytes "
        f"up and {last.bytes_down / clients:,.0f} bytes down for one client{included}"
    )
