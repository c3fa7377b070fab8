"""Figures of the committee: leaders, view changes, messages and proofs of misbehaviour."""

from __future__ import annotations

from fedrfq.learning.evaluation import RoundRecord
from fedrfq.report import marks
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.run_data import RunData

_BYTES = "bytes per round"
_PROVED = "misbehaviour proved"


def views(run: RunData) -> Figure | None:
    """Draw which server led each round to its decision, and how many view changes that took."""
    rows = [_row(record) for record in run.records if record.view is not None]
    if not rows:
        return None
    changes = sum(record.view or 0 for record in run.records)
    caption = (
        f"The server that led each round to its decision: {run.experiment.committee.about()}. "
        "The colour shows how many times the leader had to be replaced first; "
        f"{changes:,} times in total."
    )
    spec = leaders(len({row["leader"] for row in rows}))
    return Figure("committee", "Leaders and views", caption, rows, spec)


def messages(run: RunData) -> Figure | None:
    """Draw the committee's bytes in each round, with its messages and proofs of misbehaviour."""
    rows = [_row(record) for record in run.records if record.view is not None]
    if not rows:
        return None
    proofs = sum(record.evidence or 0 for record in run.records)
    caption = (
        "Bytes sent between servers and clients in each round. Triangles mark rounds in which "
        f"a party was proved to have lied: {proofs:,} proofs in total. "
        "Hover to see the number of messages and proofs."
    )
    spec = _traffic(max(record.committee_bytes or 0 for record in run.records))
    return Figure("agreeing", "Messages and proofs", caption, rows, spec)


def _row(record: RoundRecord) -> Row:
    return {
        "round": record.round,
        "leader": record.leader,
        "view": record.view,
        "messages": record.committee_messages,
        "bytes": record.committee_bytes,
        "evidence": record.evidence,
    }


_TOOLTIP = marks.tips(
    round="round",
    leader="leader",
    view="view changes",
    messages="sent, messages",
    bytes="sent, bytes",
    evidence="proofs of misbehaviour",
)


def leaders(servers: int) -> Spec:
    """Draw a cell for each round in the row of its leader."""
    colour = {
        "field": "view",
        "type": "ordinal",
        "title": "view changes",
        "legend": {"orient": "top"},
    }
    return marks.cells(26 * servers, "leader", "leading server", color=colour, tooltip=_TOOLTIP)


def _traffic(largest: int) -> Spec:
    """Draw a line of bytes over rounds, with a triangle where misbehaviour was proved."""
    y = marks.amount("bytes", "bytes", largest)
    # Both marks stand for constants, not for a field of the rows.
    colour = marks.series([_BYTES, _PROVED])
    del colour["field"]
    line, point = marks.curves([_BYTES, _PROVED], y, _TOOLTIP, band=False)["layer"]
    for layer in (line, point):
        layer["encoding"]["color"] = {**colour, "datum": _BYTES}
    # One series cannot be singled out by a click on the legend, so only zooming is left.
    line["params"] = [marks.ZOOM]
    line["encoding"]["opacity"] = {"value": 1}
    proofs = {
        "transform": [{"filter": "datum.evidence > 0"}],
        "mark": {
            "type": "point",
            "shape": "triangle-up",
            "filled": True,
            "size": 70,
            "clip": True,
            "opacity": 1,
        },
        "encoding": {"x": marks.rounds(), "y": y, "color": {**colour, "datum": _PROVED}},
    }
    return {"height": 200, "layer": [line, proofs, point]}
