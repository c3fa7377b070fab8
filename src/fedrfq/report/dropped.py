"""What the detector did, round after round and client after client."""

from __future__ import annotations

from fedrfq.report import marks
from fedrfq.report.clients_csv import ClientRow
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.run_data import RunData

_FOUND = "malicious, dropped"
_WRONG = "honest, dropped"
_MISSED = "malicious, kept"
_COLOURS = {
    _FOUND: "#4C8FC4",
    _WRONG: "#E0A100",
    _MISSED: "#D55E00",
}  # good, bad and worse, by day and by night


def dropped(run: RunData) -> Figure | None:
    """Uploads that were dropped, and malicious ones that were not; none where there is neither."""
    start = run.experiment.attack.start_round
    events = [event for event in run.clients.events if _dropped(event) or event.round >= start]
    if not events:
        return None
    rows: list[Row] = [
        {
            "round": event.round,
            "client": event.number,
            "series": _kind(event),
            "how": {"filtered": "by the detector", "refused": "could not be taken"}.get(
                event.verdict, ""
            ),
        }
        for event in events
    ]
    counts = {name: sum(row["series"] == name for row in rows) for name in _COLOURS}
    said = "; ".join(f"{count:,} × {name}" for name, count in counts.items())
    caption = f"Uploads that did not count, and malicious ones that did, of the clients that had any: {said}."
    return Figure(
        "filtered",
        "Filtered clients",
        caption,
        rows,
        _ticks(len({event.number for event in events})),
    )


def _dropped(event: ClientRow) -> bool:
    return event.verdict != "kept"


def _kind(event: ClientRow) -> str:
    if not event.malicious:
        return _WRONG
    if _dropped(event):
        return _FOUND
    return _MISSED


def _ticks(clients: int) -> Spec:
    return {
        "height": (24 if clients <= 20 else 14) * clients,
        "transform": [
            {"calculate": "datum.round - 0.5", "as": "from"},
            {"calculate": "datum.round + 0.5", "as": "to"},
        ],
        "params": [
            {**marks.ZOOM, "select": {**marks.ZOOM["select"], "encodings": ["x"]}},
            marks.switch("series"),
        ],
        "mark": {"type": "rect", "clip": True, "cornerRadius": 1},
        "encoding": {
            "x": {**marks.rounds(), "field": "from"},
            "x2": {"field": "to"},
            "y": {
                "field": "client",
                "type": "ordinal",
                "title": "client",
                "scale": {"paddingInner": 0.2},
            },
            "color": marks.series(
                list(_COLOURS), scale={"domain": list(_COLOURS), "range": list(_COLOURS.values())}
            ),
            "opacity": marks.shown(1),
            "tooltip": marks.tips(round="round", client="client", series="", how="dropped"),
        },
    }
