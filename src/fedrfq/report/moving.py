"""Figure of the global prototypes moving through the plane, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedrfq.prototypes.fixed_point import FRACTION_BITS
from fedrfq.report import marks
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.projection import principal
from fedrfq.runs.trail import TrailRound

# Classes whose paths are drawn; more would be a tangle.
_MAX_CLASSES = 62


def moving(trail: Sequence[TrailRound], name_of: Callable[[int], str]) -> Figure | None:
    """Draw the path of each class's global prototype; None before there are two rounds."""
    if len(trail) < 2:
        return None
    places = [
        (done.round, label)
        for done in trail
        for label in np.flatnonzero(done.globals_.present_J)[:_MAX_CLASSES].tolist()
    ]
    vectors = [
        done.globals_.values_JV[np.flatnonzero(done.globals_.present_J)[:_MAX_CLASSES]]
        for done in trail
    ]
    points_R2, variance_2 = principal(np.concatenate(vectors) / 2.0**FRACTION_BITS)
    last = trail[-1].round
    rows: list[Row] = [
        {"class": name_of(label), "round": number, "x": x, "y": y, "now": number == last}
        for (number, label), (x, y) in zip(places, points_R2.tolist(), strict=True)
    ]
    caption = (
        f"The global prototypes of rounds {trail[0].round} to {last}, projected onto the first "
        f"two principal components of all of them, which explain {variance_2[0]:.0%} and "
        f"{variance_2[1]:.0%} of the variance. A line is the path of a class, its diamond the "
        "place it has reached."
    )
    names = list(dict.fromkeys(str(row["class"]) for row in rows))
    return Figure("trail", "How prototypes moved", caption, rows, _paths(names))


def _paths(names: list[str]) -> Spec:
    """Draw a line for each class, and a diamond at its end."""
    x, y = marks.plane()
    colour = marks.series(names, "class")
    tooltip = [{"field": field, "title": field} for field in ("class", "round")]
    lines = {
        "mark": {"type": "line", "clip": True, "strokeWidth": 1.5},
        "params": [marks.ZOOM, marks.switch("class")],
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "order": {"field": "round", "type": "quantitative"},
            "opacity": marks.shown(0.55),
        },
    }
    ends = {
        "transform": [{"filter": "datum.now"}],
        "mark": {"type": "point", "filled": True, "shape": "diamond", "clip": True, "size": 190},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "opacity": marks.shown(1),
            "tooltip": tooltip,
        },
    }
    return {"height": 400, "layer": [lines, ends]}
