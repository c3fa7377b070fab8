"""How charts look on a light and on a dark page.

The colours of series are Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from fedrfq.report.figure import Spec

_FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'DejaVu Sans', "
    "sans-serif"
)
_DAY = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#7F7F7F",
    "#B8860B",
    "#56B4E9",
    "#8C564B",
    "#E69F00",
    "#5B4DB3",
]
_NIGHT = [
    "#4FA8E0",
    "#F08A4B",
    "#2FC49A",
    "#E39BC4",
    "#A9ADB3",
    "#D9B44A",
    "#8FD0F5",
    "#C79A8E",
    "#F2BE54",
    "#A79BEF",
]
_DAY_RAMP = ["#DCEBF7", "#6FB1DE", "#0072B2"]
_NIGHT_RAMP = ["#1F3A52", "#2F6F9F", "#4FA8E0"]
# No view change, one, two, more.
_DAY_VIEWS = ["#A9CBE6", "#D55E00", "#8A3B00", "#4A2000"]
_NIGHT_VIEWS = ["#33628A", "#F08A4B", "#F6B98F", "#FCE3D2"]


def _config(
    *,
    ink: str,
    quiet: str,
    grid: str,
    paper: str | None,
    colours: list[str],
    ramp: list[str],
    views: list[str],
) -> Spec:
    """Return Vega-Lite's configuration; `paper` is None where the page itself is the background."""
    text = {
        "labelColor": quiet,
        "titleColor": quiet,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    return {
        "background": paper,
        "font": _FONT,
        "view": {"stroke": None},
        "title": {"color": ink, "fontSize": 17, "fontWeight": 600},
        "axis": {
            **text,
            "gridColor": grid,
            "domainColor": grid,
            "tickColor": grid,
            "labelPadding": 6,
            "titlePadding": 10,
        },
        "axisY": {
            "titleAngle": 0,
            "titleAlign": "left",
            "titleBaseline": "bottom",
            "titleX": 0,
            "titleY": -8,
            "domain": False,
        },
        "axisYBand": {"ticks": False},
        "axisXBand": {"ticks": False, "domain": False},
        "legend": {
            **text,
            "symbolSize": 110,
            "offset": 30,
            "rowPadding": 4,
            "columnPadding": 18,
            "titleOrient": "left",
        },
        "text": {"color": ink},
        "rule": {"color": quiet},
        "range": {"category": colours, "ramp": ramp, "heatmap": ramp, "ordinal": views},
    }


DAY = _config(
    ink="#1c2430",
    quiet="#5a6472",
    grid="#e3e7ec",
    paper="#ffffff",
    colours=_DAY,
    ramp=_DAY_RAMP,
    views=_DAY_VIEWS,
)
NIGHT = _config(
    ink="#e8ecf1",
    quiet="#9aa5b3",
    grid="#2c3542",
    paper=None,
    colours=_NIGHT,
    ramp=_NIGHT_RAMP,
    views=_NIGHT_VIEWS,
)
