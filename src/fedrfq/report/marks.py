"""Pieces of Vega-Lite that figures share: axes, tooltips, lines with bands that can be hovered, zoomed and switched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrfq.report.figure import HOVER, WIDTH, Spec

# The wheel alone scrolls the page, and a finger too: the chart takes them only with Ctrl, and from a mouse.
ZOOM: Spec = {
    "name": "zoom",
    "select": {
        "type": "interval",
        "encodings": ["x", "y"],
        "zoom": "wheel![event.ctrlKey || event.metaKey]",
        "translate": "[pointerdown[event.pointerType !== 'touch'], window:pointerup] > window:pointermove!",
    },
    "bind": "scales",
}
FADED = 0.06
COLOURS = 10  # of the theme: after them it begins again
_STROKE = 26  # the length of a line in the legend
PERCENT = "test accuracy, %"
WHOLE = "datum.value % 1 ? '' : format(datum.value, 'd')"  # there is no half a round
BYTES = "replace(format(datum.value, '~s'), /([kMGT]?)$/, ' $1B')"


def switch(field: str) -> Spec:
    """Clicks on the legend single series out."""
    return {
        "name": "shown",
        "select": {"type": "point", "fields": [field], "toggle": "true"},
        "bind": "legend",
    }


def shown(value: float) -> Spec:
    """Opacity: of what is not singled out, next to none."""
    return {"condition": {"param": "shown", "value": value}, "value": FADED * value}


def tips(**titles: str) -> list[Spec]:
    """A tooltip of fields by their titles; numbers to two digits where the title ends with %, values as they are else."""
    return [{"field": field, "title": title, **_format(title)} for field, title in titles.items()]


def _format(title: str) -> Spec:
    if title.endswith("%"):
        return {"type": "quantitative", "format": ".2f"}
    if title.endswith(("bytes", "messages")):
        return {"type": "quantitative", "format": ","}
    return {"type": "nominal"}


def axis(field: str, title: str, **more: Any) -> Spec:
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"zero": False, "nice": False, "padding": 8},
        **more,
    }


def amount(field: str, title: str, most: float) -> Spec:
    """An axis of bytes, from 0 to a little above the most."""
    return axis(
        field,
        title,
        axis={"labelExpr": BYTES},
        scale={"nice": False, "domainMin": 0, "domainMax": 1.06 * most},
    )


def rounds() -> Spec:
    return axis("round", "round", axis={"labelExpr": WHOLE, "ticks": False, "grid": False})


def series(names: Sequence[str], field: str = "series", **more: Any) -> Spec:
    """Colours by name, always in the same order, and a legend with the columns that fit; the page takes fewer if it must."""
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
    return max(1, WIDTH // (30 + symbol + 7 * min(40, max(map(len, names), default=1))))


def lines(names: Sequence[str]) -> tuple[Spec, Spec]:
    """Colours by name, and dashes beside them where there are more series than colours: the first ten lines are drawn in one
    piece, the next ten in dashes, those after them in dashes with ever more dots between, each so in the legend, too."""
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
    """Lengths that are drawn and left out, in turns."""
    if number:
        return [7, 3] + [2, 3] * (number - 1)
    return [1, 0]


def curves(
    names: Sequence[str], y: Spec, tooltip: list[Spec], band: bool, height: int = 320
) -> Spec:
    """A line for each series over rounds, with a band from `low` to `high`; the nearest point tells its values."""
    (colour, dash) = lines(names)
    x = rounds()
    line = {
        "mark": {"type": "line", "clip": True, "strokeWidth": 2},
        "params": [ZOOM, switch("series")],
        "encoding": {"x": x, "y": y, "color": colour, **dash, "opacity": shown(1)},
    }
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
    return {"height": height, "layer": [*([area] if band else []), line, point]}
