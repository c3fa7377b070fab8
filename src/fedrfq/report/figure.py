"""A figure: rows of data and how they are drawn. One Vega-Lite specification gives the page, the picture and the CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Value = str | int | float | None
Row = dict[str, Value]
Spec = dict[str, Any]

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_MOST_ROWS = 6000  # in the page; the CSV has them all
WIDTH = 760  # of a picture
HOVER = "hovered"  # the layer that only a mouse needs


@dataclass(frozen=True)
class Figure:
    """`spec` says how, without data, width and colours; every row has the same columns."""

    name: str
    title: str
    caption: str
    rows: Sequence[Row]
    spec: Spec

    def page(self) -> Spec:
        """As the page draws it: as wide as it can be."""
        return {
            **self._whole(self.drawn()),
            "width": "container",
            "autosize": {"type": "fit-x", "contains": "padding"},
        }

    def picture(self, config: Spec) -> Spec:
        """As a picture by itself."""
        title = {"text": self.title, "anchor": "start", "offset": 18}
        whole = self._whole(self.drawn())
        if "layer" in whole:
            whole["layer"] = [layer for layer in whole["layer"] if layer.get("name") != HOVER]
        return {**whole, "width": WIDTH, "title": title, "padding": 16, "config": config}

    def csv(self) -> str:
        table = io.StringIO()
        writer = csv.DictWriter(table, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return table.getvalue()

    def drawn(self) -> list[Row]:
        """All rows, or of too many those of every so many rounds, or the first."""
        rows = list(self.rows)
        if len(rows) > _MOST_ROWS and "round" in rows[0]:
            every = -(-len(rows) // _MOST_ROWS)
            last = rows[-1]["round"]
            rows = [
                row for row in rows if int(row["round"] or 0) % every == 0 or row["round"] == last
            ]
        return [{key: _short(value) for key, value in row.items()} for row in rows[:_MOST_ROWS]]

    def _whole(self, rows: list[Row]) -> Spec:
        return {"$schema": _SCHEMA, "data": {"values": rows}, **self.spec}


def _short(value: Value) -> Value:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value
