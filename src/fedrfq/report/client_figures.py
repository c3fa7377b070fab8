"""The clients: how well each one does, and which classes it holds."""

from __future__ import annotations

from fedrfq.report import marks
from fedrfq.report.clients_csv import ClientRow
from fedrfq.report.curves import HEAD, PROTOTYPE
from fedrfq.report.figure import Figure, Row, Spec
from fedrfq.report.run_data import RunData

_MOST_CLIENTS = 200
_MOST_CLASSES = 128


def accuracies(run: RunData) -> Figure | None:
    """Each client's accuracies after the last round."""
    rows = [row for client in run.clients.last[:_MOST_CLIENTS] for row in _both(client)]
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    last = max(client.round for client in run.clients.last)
    caption = (
        f"Each client's test accuracy after round {last}, on test samples of the classes it holds."
    )
    if any(client.malicious for client in run.clients.last):
        caption += " Triangles are malicious clients."
    return Figure(
        "clients", "Clients", caption + _cut(len(run.clients.last)), rows, _dumbbells(names)
    )


def _both(client: ClientRow) -> list[Row]:
    found = ((HEAD, client.accuracy), (PROTOTYPE, client.prototype_accuracy))
    return [
        {
            "client": client.number,
            "series": name,
            "accuracy": value,
            "classes": client.classes,
            "samples": client.samples,
            "role": "malicious" if client.malicious else "honest",
        }
        for name, value in found
        if value is not None
    ]


def _dumbbells(names: list[str]) -> Spec:
    x = {
        "field": "client",
        "type": "ordinal",
        "title": "client",
        "axis": {"labelAngle": 0, "labelOverlap": "greedy"},
    }
    y = marks.axis("accuracy", marks.PERCENT)
    tooltip = marks.tips(
        client="client",
        series="",
        accuracy="accuracy, %",
        classes="classes",
        samples="training samples",
        role="role",
    )
    shape = {
        "field": "role",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": ["honest", "malicious"], "range": ["circle", "triangle-up"]},
    }
    rule = {
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.35},
        "encoding": {
            "x": x,
            "y": {**y, "aggregate": "min"},
            "y2": {"field": "accuracy", "aggregate": "max"},
        },
    }
    common = {
        "x": x,
        "y": y,
        "color": marks.series(names),
        "shape": shape,
        "opacity": marks.shown(1),
        "tooltip": tooltip,
    }
    rings = {  # around the dots, so that both are seen where they are equal
        "transform": [{"filter": f"datum.series === '{PROTOTYPE}'"}],
        "mark": {"type": "point", "filled": False, "size": 170, "strokeWidth": 2.5},
        "params": [marks.switch("series")],
        "encoding": common,
    }
    dots = {
        "transform": [{"filter": f"datum.series === '{HEAD}'"}],
        "mark": {"type": "point", "filled": True, "size": 60},
        "encoding": common,
    }
    return {"height": 280, "layer": [rule, rings, dots]}


def partition(run: RunData) -> Figure | None:
    """The map of who holds how many samples of which class."""
    labels = sorted({share.label for share in run.shares})
    shown = set(labels[:_MOST_CLASSES])
    rows: list[Row] = [
        {
            "client": share.client,
            "label": share.label,
            "class": run.name_of(share.label),
            "train": share.train,
            "test": share.test,
        }
        for share in run.shares
        if share.client < _MOST_CLIENTS and share.label in shown
    ]
    if not rows:
        return None
    clients = len({share.client for share in run.shares})
    caption = "Training samples of each class that each client holds; where nothing is drawn it holds none."
    if len(labels) > _MOST_CLASSES:
        caption += f" The first {_MOST_CLASSES} of {len(labels)} classes."
    names = {row["class"] for row in rows}
    return Figure(
        "partition", "Classes and clients", caption + _cut(clients), rows, _map(len(names))
    )


def _map(classes: int) -> Spec:
    return {
        "height": (22 if classes <= 20 else 13) * classes,
        "mark": {"type": "rect", "cornerRadius": 2},
        "encoding": {
            "x": {
                "field": "client",
                "type": "ordinal",
                "title": "client",
                "scale": {"paddingInner": 0.08},
                "axis": {"labelAngle": 0, "labelOverlap": "greedy"},
            },
            "y": {
                "field": "class",
                "type": "nominal",
                "title": "class",
                "sort": {"field": "label", "op": "min"},  # names would become part of an expression
                "scale": {"paddingInner": 0.1},
                "axis": {"labelLimit": 120, "grid": True, "zindex": 0, "labelOverlap": False},
            },
            "color": {
                "field": "train",
                "type": "quantitative",
                "title": "training samples",
                "scale": {"zero": True},
                "legend": {
                    "orient": "top",
                    "gradientLength": 160,
                    "direction": "horizontal",
                    "tickCount": 4,
                    "titleOrient": "top",
                },
            },
            "tooltip": [
                {"field": "client", "title": "client"},
                {"field": "class", "title": "class"},
                {"field": "train", "title": "training samples"},
                {"field": "test", "title": "test samples"},
            ],
        },
    }


def _cut(clients: int) -> str:
    if clients > _MOST_CLIENTS:
        return f" The first {_MOST_CLIENTS} of {clients:,} clients."
    return ""
