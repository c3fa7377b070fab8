"""Figure of dropped uploads: what the detector did to each client in each round."""

from __future__ import annotations

from fedrfq.report import marks
from fedrfq.report.clients_csv import ClientRow
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.run_data import RunData

_CAUGHT = "malicious, dropped"
_WRONGED = "honest, dropped"
_MISSED = "malicious, kept"
# Good, bad and worse; the colours can be told apart on a light and on a dark page.
_COLOURS = {_CAUGHT: "#4C8FC4", _WRONGED: "#E0A100", _MISSED: "#D55E00"}
_DROPPED_BY = {"filtered": "by the detector", "refused": "as invalid"}
# Up to so many rows are drawn tall.
_FEW_CLIENTS = 20


def dropped(run: RunData) -> Figure | None:
    """Draw dropped uploads, and malicious ones that were kept; return None if there are neither."""
    # Before the attack starts, attackers behave, and keeping their uploads is no mistake.
    start = run.experiment.attack.start_round
    events = [event for event in run.clients.events if _dropped(event) or event.round >= start]
    if not events:
        return None
    rows: list[Row] = [
        {
            "round": event.round,
            "client": event.number,
            "series": _kind(event),
            "how": _DROPPED_BY.get(event.verdict, ""),
        }
        for event in events
    ]
    totals = {name: sum(row["series"] == name for row in rows) for name in _COLOURS}
    counts = "; ".join(f"{count:,} × {name}" for name, count in totals.items())
    caption = (
        "Uploads that were dropped, and malicious uploads that were kept. "
        f"Only clients with such uploads are shown: {counts}."
    )
    spec = _cells(len({event.number for event in events}))
    return Figure("filtered", "Filtered clients", caption, rows, spec)


def _dropped(event: ClientRow) -> bool:
    return event.verdict != "kept"


def _kind(event: ClientRow) -> str:
    if not event.malicious:
        return _WRONGED
    if _dropped(event):
        return _CAUGHT
    return _MISSED


def _cells(clients: int) -> Spec:
    """Draw a cell for each event, in the row of its client."""
    row_height = 14
    if clients <= _FEW_CLIENTS:
        row_height = 24
    return {
        "height": row_height * clients,
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
