"""Figure of the prototypes in the plane, by their first two principal components."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrfq.prototypes.fixed_point import FRACTION_BITS
from fedrfq.report import marks
from fedrfq.report.figure import Figure, Row, Spec, first_shown
from fedrfq.report.run_data import RunData
from fedrfq.runs.snapshot import PrototypeSnapshot

# Dots on the page, so that it stays quick.
_MAX_POINTS = 3000
# With more classes than this, their names replace the diamonds, which would hide each other.
_MAX_DIAMONDS = 20
_CLIENT = "client"
_MALICIOUS = "malicious client"
_GLOBAL = "global"

Floats = NDArray[np.float64]


def projection(run: RunData) -> Figure | None:
    """Draw the clients' prototypes of the last round, and the global ones."""
    snapshot = run.prototypes
    if snapshot is None or not snapshot.globals_.present_J.any():
        return None
    # While a run goes on, only the global ones are known, and the figure of their paths has them.
    if run.trail and not len(snapshot.client_R):
        return None
    points_R2, variance_2 = principal(_vectors(snapshot))
    rows = _rows(run, snapshot, points_R2)
    names = list(dict.fromkeys(str(row["class"]) for row in rows))
    caption = (
        f"Pooled prototypes of round {snapshot.round}, projected onto their first two principal "
        f"components, which explain {variance_2[0]:.0%} and {variance_2[1]:.0%} of the variance. "
    )
    caption += "Names" if len(names) > _MAX_DIAMONDS else "Diamonds"
    caption += " are global prototypes"
    sent = len(snapshot.client_R)
    if sent:
        caption += ", dots are what single clients sent."
    else:
        caption += "; what the clients sent was not recorded."
    caption += first_shown(_MAX_POINTS, sent, "dots")
    if any(row["kind"] == _MALICIOUS for row in rows):
        caption += " Crosses are from malicious clients."
    return Figure("prototypes", "Prototypes", caption, rows, _scatter(names))


def principal(values_RV: Floats) -> tuple[Floats, Floats]:
    """Return the rows in their first two principal components, and the variance each explains.

    Components that do not exist, since there is one row or one value, are zero.
    """
    centred_RV = values_RV - values_RV.mean(0)
    u, s, v = np.linalg.svd(centred_RV, full_matrices=False)
    # A component's sign is arbitrary; fixed, the plane does not flip while a run goes on.
    u = u * np.sign(v[np.arange(len(v)), np.abs(v).argmax(1)])
    points_R2 = np.zeros((len(u), 2))
    variance_2 = np.zeros(2)
    kept = min(2, len(s))
    # Equal rows have no variance to divide by.
    total = max(float((s**2).sum()), 1e-300)
    points_R2[:, :kept] = u[:, :kept] * s[:kept]
    variance_2[:kept] = s[:kept] ** 2 / total
    return points_R2, variance_2


def _vectors(snapshot: PrototypeSnapshot) -> Floats:
    """Return the global prototypes, then the clients'."""
    globals_ = snapshot.globals_
    both = (globals_.values_JV[globals_.present_J], snapshot.values_RV[:_MAX_POINTS])
    values: Floats = np.concatenate(both) / 2.0**FRACTION_BITS
    return values


def _rows(run: RunData, snapshot: PrototypeSnapshot, points_R2: Floats) -> list[Row]:
    """Return a row for each vector, in the order of `_vectors`."""
    malicious = {client.number for client in run.clients.last if client.malicious}
    rows: list[Row] = [
        {"class": run.name_of(label), "kind": _GLOBAL, "client": None, "samples": None}
        for label in np.flatnonzero(snapshot.globals_.present_J).tolist()
    ]
    columns = (snapshot.label_R, snapshot.client_R, snapshot.count_R)
    for label, client, count in zip(*(c[:_MAX_POINTS].tolist() for c in columns), strict=True):
        kind = _MALICIOUS if client in malicious else _CLIENT
        rows.append({"class": run.name_of(label), "kind": kind, "client": client, "samples": count})
    for row, (x, y) in zip(rows, points_R2.tolist(), strict=True):
        row["x"] = x
        row["y"] = y
    return rows


def _scatter(names: list[str]) -> Spec:
    """Draw a dot for each client's prototype, and a diamond or a name for each global one."""
    x, y = marks.plane()
    tooltip = [{"field": field, "title": field} for field in ("class", "kind", "client", "samples")]
    common = {"x": x, "y": y, "color": marks.series(names, "class"), "tooltip": tooltip}
    shapes = {"domain": [_CLIENT, _MALICIOUS], "range": ["circle", "cross"]}
    dots = {
        "transform": [{"filter": f"datum.kind !== '{_GLOBAL}'"}],
        "mark": {"type": "point", "filled": True, "clip": True, "size": 55},
        "params": [marks.ZOOM, marks.switch("class")],
        "encoding": {
            **common,
            "shape": {"field": "kind", "type": "nominal", "scale": shapes, "legend": None},
            "opacity": marks.shown(0.65),
        },
    }
    diamonds = {
        "transform": [{"filter": f"datum.kind === '{_GLOBAL}'"}],
        "mark": {"type": "point", "filled": True, "shape": "diamond", "clip": True, "size": 230},
        "encoding": {**common, "opacity": marks.shown(1)},
    }
    text: Spec = {
        "transform": [{"filter": f"datum.kind === '{_GLOBAL}'"}],
        "mark": {
            "type": "text",
            "dy": -15,
            "fontWeight": "bold",
            "fontSize": 13,
            "clip": True,
            "limit": 90,
        },
        "encoding": {"x": x, "y": y, "text": {"field": "class"}, "opacity": marks.shown(1)},
    }
    layers = [dots, diamonds, text]
    if len(names) > _MAX_DIAMONDS:
        text["mark"]["dy"] = 0
        text["encoding"] = {**common, "text": {"field": "class"}, "opacity": marks.shown(1)}
        layers = [dots, text]
    return {"height": 440, "layer": layers}
