"""Figure of weights: what the detector did to each client in each round, and why."""

from __future__ import annotations

from fedrfq.report import marks
from fedrfq.report.clients_csv import ClientRow
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.run_data import RunData

_CAUGHT = "malicious, dropped"
_WRONGED = "honest, dropped"
_MISSED = "malicious, kept"
_LIMITED = "malicious, less weight"
_LIGHTER = "honest, less weight"
# Good, bad and worse; the colours can be told apart on a light and on a dark page.
_COLOURS = {
    _CAUGHT: "#4C8FC4",
    _LIMITED: "#8CC3E8",
    _LIGHTER: "#F2D88A",
    _WRONGED: "#E0A100",
    _MISSED: "#D55E00",
}
_DROPPED_BY = {"filtered": "by the detector", "refused": "as invalid"}
# Up to so many rows are drawn tall.
_FEW_CLIENTS = 20


def dropped(run: RunData) -> Figure | None:
    """Draw uploads that count for less or not at all, and malicious ones; None without any."""
    # Before the attack starts, attackers behave, and keeping their uploads is no mistake.
    start = run.experiment.attack.start_round
    events = [
        event
        for event in run.clients.events
        if _dropped(event) or event.lighter or event.round >= start
    ]
    if not events:
        return None
    rows: list[Row] = [
        {
            "round": event.round,
            "client": event.number,
            "series": _kind(event),
            "how": _DROPPED_BY.get(event.verdict, ""),
            "weight": event.weight,
            "reason": event.reason,
        }
        for event in events
    ]
    totals = {name: sum(row["series"] == name for row in rows) for name in _COLOURS}
    counts = "; ".join(f"{count:,} × {name}" for name, count in totals.items() if count)
    caption = (
        "Uploads that were dropped or count for less, and malicious uploads that were kept. "
        f"Only clients with such uploads are shown: {counts}."
    )
    spec = _cells(len({event.number for event in events}))
    return Figure("filtered", "Filtered clients", caption, rows, spec)


def _dropped(event: ClientRow) -> bool:
    return event.verdict != "kept"


def _kind(event: ClientRow) -> str:
    if _dropped(event):
        return _CAUGHT if event.malicious else _WRONGED
    if event.lighter:
        return _LIMITED if event.malicious else _LIGHTER
    return _MISSED


def _cells(clients: int) -> Spec:
    """Draw a cell for each event, in the row of its client."""
    row_height = 14
    if clients <= _FEW_CLIENTS:
        row_height = 24
    scale = {"domain": list(_COLOURS), "range": list(_COLOURS.values())}
    spec = marks.cells(
        row_height * clients,
        "client",
        "client",
        color=marks.series(list(_COLOURS), scale=scale),
        opacity=marks.shown(1),
        tooltip=marks.tips(
            round="round",
            client="client",
            series="",
            how="dropped",
            weight="weight left, %",
            reason="why",
        ),
    )
    spec["params"].append(marks.switch("series"))
    return spec
