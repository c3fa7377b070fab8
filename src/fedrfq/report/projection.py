"""Prototypes in the plane: the two directions in which they differ most."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrfq.prototypes.fixed_point import FRACTION_BITS
from fedrfq.report import marks
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.run_data import RunData
from fedrfq.runs.snapshot import PrototypeSnapshot

_MOST_POINTS = 3000
_MANY = 20  # classes
_KINDS = ["client", "malicious client", "global"]

Floats = NDArray[np.float64]


def projection(run: RunData) -> Figure | None:
    """Clients' prototypes of the last round, and the global ones."""
    found = run.prototypes
    if found is None or not found.globals_.present_J.any():
        return None
    flat, share = principal(_vectors(found))
    rows = _rows(run, found, flat)
    names = list(dict.fromkeys(str(row["class"]) for row in rows))
    caption = (
        f"Pooled prototypes of round {found.round}, projected onto their first two principal components, which hold "
        f"{share[0]:.0%} and {share[1]:.0%} of their variance. "
        f"{'Names' if len(names) > _MANY else 'Diamonds'} are global prototypes"
    )
    caption += (
        ", dots what single clients sent."
        if len(found.client_R)
        else "; what the clients sent was not recorded."
    )
    if len(found.client_R) > _MOST_POINTS:
        caption += f" The first {_MOST_POINTS:,} of {len(found.client_R):,} dots."
    if any(row["kind"] == _KINDS[1] for row in rows):
        caption += " Crosses are malicious clients'."
    return Figure("prototypes", "Prototypes", caption, rows, _scatter(names))


def principal(values_RV: Floats) -> tuple[Floats, Floats]:
    """Rows in their first two principal components, and the share of the variance that each holds."""
    centred = values_RV - values_RV.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(u), 2))
    share = np.zeros(2)
    kept = min(2, len(s))
    total = max(float((s**2).sum()), 1e-300)
    flat[:, :kept] = u[:, :kept] * s[:kept]
    share[:kept] = s[:kept] ** 2 / total
    return flat, share


def _vectors(found: PrototypeSnapshot) -> Floats:
    """The global ones, then the clients'."""
    both = (found.globals_.values_JV[found.globals_.present_J], found.values_RV[:_MOST_POINTS])
    values: Floats = np.concatenate(both) / 2.0**FRACTION_BITS
    return values


def _rows(run: RunData, found: PrototypeSnapshot, flat: Floats) -> list[Row]:
    malicious = {client.number for client in run.clients.last if client.malicious}
    labels = [(j, None, 0) for j in np.flatnonzero(found.globals_.present_J).tolist()]
    sent = (found.label_R.tolist(), found.client_R.tolist(), found.count_R.tolist())
    labels += list(zip(*(column[:_MOST_POINTS] for column in sent), strict=True))
    return [
        {
            "class": run.name_of(label),
            "kind": _KINDS[2] if client is None else _KINDS[int(client in malicious)],
            "client": client,
            "samples": None if client is None else count,
            "x": x,
            "y": y,
        }
        for (label, client, count), (x, y) in zip(labels, flat.tolist(), strict=True)
    ]


def _scatter(names: list[str]) -> Spec:
    bare = {
        "axis": {"labels": False, "ticks": False, "grid": False},
        "scale": {"zero": False, "nice": False, "padding": 24},
    }
    x, y = (
        marks.axis(field, f"component {number}", **bare)
        for number, field in enumerate("xy", start=1)
    )
    tooltip = [{"field": field, "title": field} for field in ("class", "kind", "client", "samples")]
    common = {"x": x, "y": y, "color": marks.series(names, "class"), "tooltip": tooltip}
    shapes = {"domain": _KINDS[:2], "range": ["circle", "cross"]}
    dots = {
        "transform": [{"filter": f"datum.kind !== '{_KINDS[2]}'"}],
        "mark": {"type": "point", "filled": True, "clip": True, "size": 55},
        "params": [marks.ZOOM, marks.switch("class")],
        "encoding": {
            **common,
            "shape": {"field": "kind", "type": "nominal", "scale": shapes, "legend": None},
            "opacity": marks.shown(0.65),
        },
    }
    diamonds = {
        "transform": [{"filter": f"datum.kind === '{_KINDS[2]}'"}],
        "mark": {"type": "point", "filled": True, "shape": "diamond", "clip": True, "size": 230},
        "encoding": {**common, "opacity": marks.shown(1)},
    }
    text: Spec = {
        "transform": [{"filter": f"datum.kind === '{_KINDS[2]}'"}],
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
    if len(names) > _MANY:  # names in the place of diamonds: both would hide each other
        text["mark"]["dy"] = 0
        text["encoding"] = {**common, "text": {"field": "class"}, "opacity": marks.shown(1)}
    return {"height": 440, "layer": [dots, *([] if len(names) > _MANY else [diamonds]), text]}
