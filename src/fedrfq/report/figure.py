"""A figure: rows of data, and a Vega-Lite specification that draws them on the page and as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedrfq.files.csv_text import csv_text

Value = str | int | float | None
Row = dict[str, Value]
Spec = dict[str, Any]

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
# Rows drawn on the page, so that it stays quick; the CSV file has them all.
_MAX_ROWS = 6000
# Pixels of a picture.
WIDTH = 760
# The name of the layer that answers the mouse, and has no place in a picture.
HOVER = "hovered"


@dataclass(frozen=True)
class Figure:
    """Rows with the same columns, and the `spec` that draws them, without width and colours."""

    name: str
    title: str
    caption: str
    rows: Sequence[Row]
    spec: Spec

    def page(self) -> Spec:
        """Return the specification for the page, where the figure is as wide as its section."""
        return {
            **self._with_data(),
            "width": "container",
            "autosize": {"type": "fit-x", "contains": "padding"},
        }

    def picture(self, config: Spec) -> Spec:
        """Return the specification for a picture of its own, with a title and no hover layer."""
        title = {"text": self.title, "anchor": "start", "offset": 18}
        spec = self._with_data()
        if "layer" in spec:
            spec["layer"] = [layer for layer in spec["layer"] if layer.get("name") != HOVER]
        return {**spec, "width": WIDTH, "title": title, "padding": 16, "config": config}

    def csv(self) -> str:
        """Return all rows as CSV."""
        return csv_text(list(self.rows[0]), self.rows)

    def drawn(self) -> list[Row]:
        """Return the rows to draw: of too many, every n-th round and the last one, or the first."""
        rows = list(self.rows)
        # Whole rounds are left out, so that all series keep the same ones.
        if len(rows) > _MAX_ROWS and "round" in rows[0]:
            step = -(-len(rows) // _MAX_ROWS)
            last = rows[-1]["round"]
            rows = [
                row for row in rows if int(row["round"] or 0) % step == 0 or row["round"] == last
            ]
        return [{key: _short(value) for key, value in row.items()} for row in rows[:_MAX_ROWS]]

    def _with_data(self) -> Spec:
        # By this name the rows of a drawing can be replaced.
        data = {"name": "rows", "values": self.drawn()}
        return {"$schema": _SCHEMA, "data": data, **self.spec}


def first_shown(limit: int, found: int, what: str) -> str:
    """Return a sentence on what a figure leaves out; nothing if it shows everything."""
    if found > limit:
        return f" Shows the first {limit:,} of {found:,} {what}."
    return ""


def banded(mean: float, std: float) -> Row:
    """Return the columns of an accuracy and its band, cut to what an accuracy can be."""
    return {
        "mean": mean,
        "std": std,
        "low": max(0.0, mean - std),
        "high": min(100.0, mean + std),
    }


def _short(value: Value) -> Value:
    """Round to the digits that a screen can show, which keeps the page small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value
