"""Pieces of Vega-Lite that figures share: axes, legends, tooltips, lines with bands over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrfq.report.figure import HOVER, WIDTH, Spec

# A chart zooms only while Ctrl is held and is dragged only by a mouse: without this, it would catch
# the wheel and the finger of somebody who scrolls the page.
ZOOM: Spec = {
    "name": "zoom",
    "select": {
        "type": "interval",
        "encodings": ["x", "y"],
        "zoom": "wheel![event.ctrlKey || event.metaKey]",
        "translate": (
            "[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!"
        ),
    },
    "bind": "scales",
}
# The theme has so many colours, and then starts over.
COLOURS = 10
# Titles of axes.
PERCENT = "test accuracy, %"
# The opacity of a series that is not singled out.
_FADED = 0.06
# Pixels of a line in the legend.
_STROKE = 26
# Label expressions: there is no half a round, and bytes carry a unit.
_WHOLE = "datum.value % 1 ? '' : format(datum.value, 'd')"
_BYTES = "replace(format(datum.value, '~s'), /([kMGT]?)$/, ' $1B')"


def switch(field: str) -> Spec:
    """Let clicks on the legend single out series by the values of a field."""
    return {
        "name": "shown",
        "select": {"type": "point", "fields": [field], "toggle": "true"},
        "bind": "legend",
    }


def shown(value: float) -> Spec:
    """Return an opacity that drops to next to nothing for series that are not singled out."""
    return {"condition": {"param": "shown", "value": value}, "value": _FADED * value}


def tips(**titles: str) -> list[Spec]:
    """Return a tooltip of these fields and titles; a title's ending decides the number format."""
    return [{"field": field, "title": title, **_format(title)} for field, title in titles.items()]


def _format(title: str) -> Spec:
    # A nominal field is shown as it is.
    if title.endswith("%"):
        return {"type": "quantitative", "format": ".2f"}
    if title.endswith(("bytes", "messages")):
        return {"type": "quantitative", "format": ","}
    return {"type": "nominal"}


def axis(field: str, title: str, **more: Any) -> Spec:
    """Return an axis of numbers that need not start at zero."""
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": False, "nice": False, "padding": 8},
        **more,
    }


def amount(field: str, title: str, largest: float) -> Spec:
    """Return an axis of bytes, from 0 to a little above the largest value."""
    return axis(
        field,
        title,
        axis={"labelExpr": _BYTES},
        scale={"nice": False, "domainMin": 0, "domainMax": 1.06 * largest},
    )


def rounds() -> Spec:
    """Return the axis of rounds."""
    return axis("round", "round", axis={"labelExpr": _WHOLE, "ticks": False, "grid": False})


def clients(**more: Any) -> Spec:
    """Return the axis of clients, of which there may be more than numbers fit."""
    return {
        "field": "client",
        "type": "ordinal",
        "title": "client",
        "axis": {"labelAngle": 0, "labelOverlap": "greedy"},
        **more,
    }


def classes(**more: Any) -> Spec:
    """Return the axis of classes, in the order of their labels."""
    return {
        "field": "class",
        "type": "nominal",
        "title": "class",
        # Sorting by name would put the names into a Vega expression, unescaped.
        "sort": {"field": "label", "op": "min"},
        **more,
    }


def plane() -> tuple[Spec, Spec]:
    """Return the axes of two principal components, whose numbers say nothing to a reader."""
    bare = {
        "axis": {"labels": False, "ticks": False, "grid": False},
        "scale": {"zero": False, "nice": False, "padding": 24},
    }
    return axis("x", "component 1", **bare), axis("y", "component 2", **bare)


def cells(height: int, field: str, title: str, **encoding: Any) -> Spec:
    """Draw a cell for each round that has a row, in the line of the row's `field`."""
    return {
        "height": height,
        "transform": [
            {"calculate": "datum.round - 0.5", "as": "from"},
            {"calculate": "datum.round + 0.5", "as": "to"},
        ],
        "params": [{**ZOOM, "select": {**ZOOM["select"], "encodings": ["x"]}}],
        "mark": {"type": "rect", "clip": True, "cornerRadius": 1},
        "encoding": {
            "x": {**rounds(), "field": "from"},
            "x2": {"field": "to"},
            "y": {
                "field": field,
                "type": "ordinal",
                "title": title,
                "scale": {"paddingInner": 0.2},
            },
            **encoding,
        },
    }


def series(names: Sequence[str], field: str = "series", **more: Any) -> Spec:
    """Return colours by name, in a fixed order, and a legend with as many columns as fit a picture.

    On a narrow screen, page.js takes fewer columns.
    """
    legend = {
        "orient": "top",
        "columns": _columns(names),
        "symbolLimit": 0,
        "symbolOpacity": 1,
        "labelLimit": 320,
    }
    return {
        "field": field,
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(names)},
        "legend": legend,
        **more,
    }


def _columns(names: Sequence[str], symbol: int = 10) -> int:
    """Return how many columns of a symbol and the longest name fit, at about 7 pixels a letter."""
    letters = min(40, max(map(len, names), default=1))
    return max(1, WIDTH // (30 + symbol + 7 * letters))


def lines(names: Sequence[str]) -> tuple[Spec, Spec]:
    """Return the encodings of colours and dashes that tell lines and legend entries apart.

    The first ten lines are solid and need no dashes. The next ten are dashed, and each further ten
    have one more dot between the dashes.
    """
    colour = series(names)
    if len(names) <= COLOURS:
        return colour, {}
    legend = {
        "symbolType": "stroke",
        "symbolSize": _STROKE**2,
        "symbolStrokeWidth": 2,
        "rowPadding": 0,
    }
    colour["legend"] = {**colour["legend"], "columns": _columns(names, _STROKE), **legend}
    patterns = [_dash(number // COLOURS) for number in range(len(names))]
    return colour, {"strokeDash": {**colour, "scale": {"domain": list(names), "range": patterns}}}


def _dash(number: int) -> list[int]:
    """Return the lengths of strokes and gaps, in turn."""
    if number == 0:
        return [1, 0]
    return [7, 3] + [2, 3] * (number - 1)


def curves(
    names: Sequence[str], y: Spec, tooltip: list[Spec], band: bool, height: int = 320
) -> Spec:
    """Draw a line over rounds for each series, with a `band` from `low` to `high` around it.

    The point nearest to the mouse shows the tooltip.
    """
    colour, dash = lines(names)
    x = rounds()
    line = {
        "mark": {"type": "line", "clip": True, "strokeWidth": 2},
        "params": [ZOOM, switch("series")],
        "encoding": {"x": x, "y": y, "color": colour, **dash, "opacity": shown(1)},
    }
    # The line is a layer of its own: its opacity and the band's are switched separately.
    limits = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    area = {
        "mark": {"type": "area", "clip": True},
        "encoding": {
            "x": x,
            **limits,
            "color": colour,
            "fillOpacity": shown(0.16),
            "opacity": {"value": 1},
        },
    }
    # Without `nearest`, one would have to hit the point itself, which is invisible.
    near = {
        "name": "hover",
        "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"},
    }
    visible = {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0}
    point = {
        "name": HOVER,
        "mark": {"type": "point", "filled": True, "size": 70, "clip": True},
        "params": [near],
        "encoding": {"x": x, "y": y, "color": colour, "opacity": visible, "tooltip": tooltip},
    }
    layers: list[Spec] = [line, point]
    if band:
        layers.insert(0, area)
    return {"height": height, "layer": layers}
