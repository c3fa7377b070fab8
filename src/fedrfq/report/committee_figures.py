"""The committee: who led each round to its decision, after how many view changes, with how many messages and proofs."""

from __future__ import annotations

from fedrfq.learning.evaluation import RoundRecord
from fedrfq.report import marks
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.run_data import RunData

_MARKS = ["bytes a round", "a lie was proved"]


def views(run: RunData) -> Figure | None:
    """Leaders and view changes by round."""
    rows = [_row(record) for record in run.records if record.view is not None]
    if not rows:
        return None
    changes = sum(record.view or 0 for record in run.records)
    caption = (
        f"The server that led each round to its decision: {run.experiment.committee.about()}. "
        f"The colour says how often the leader had to be replaced before that, {changes:,} times in all."
    )
    return Figure(
        "committee",
        "Leaders and views",
        caption,
        rows,
        _leaders(len({row["leader"] for row in rows})),
    )


def messages(run: RunData) -> Figure | None:
    """The committee's bytes by round, with messages and evidence."""
    rows = [_row(record) for record in run.records if record.view is not None]
    if not rows:
        return None
    proofs = sum(record.evidence or 0 for record in run.records)
    caption = (
        "Bytes among servers and clients in each round, and the rounds in which somebody was proved to have lied: "
        f"{proofs:,} proofs in all. Hover for messages and proofs."
    )
    return Figure(
        "agreeing",
        "Messages and proofs",
        caption,
        rows,
        _bytes(max(record.committee_bytes or 0 for record in run.records)),
    )


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
    evidence="proofs of lies",
)


def _leaders(servers: int) -> Spec:
    return {
        "height": 26 * servers,
        "transform": [
            {"calculate": "datum.round - 0.5", "as": "from"},
            {"calculate": "datum.round + 0.5", "as": "to"},
        ],
        "params": [{**marks.ZOOM, "select": {**marks.ZOOM["select"], "encodings": ["x"]}}],
        "mark": {"type": "rect", "clip": True, "cornerRadius": 1},
        "encoding": {
            "x": {**marks.rounds(), "field": "from"},
            "x2": {"field": "to"},
            "y": {
                "field": "leader",
                "type": "ordinal",
                "title": "leading server",
                "scale": {"paddingInner": 0.2},
            },
            "color": {
                "field": "view",
                "type": "ordinal",
                "title": "view changes",
                "legend": {"orient": "top"},
            },
            "tooltip": _TOOLTIP,
        },
    }


def _bytes(most: int) -> Spec:
    y = marks.amount("bytes", "bytes", most)
    colour = {key: value for key, value in marks.series(_MARKS).items() if key != "field"}
    line, point = marks.curves(_MARKS, y, _TOOLTIP, band=False)["layer"]
    for layer in (line, point):
        layer["encoding"]["color"] = {**colour, "datum": _MARKS[0]}
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
        "encoding": {"x": marks.rounds(), "y": y, "color": {**colour, "datum": _MARKS[1]}},
    }
    return {"height": 200, "layer": [line, proofs, point]}
