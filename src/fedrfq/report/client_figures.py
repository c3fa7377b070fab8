"""Figures of the clients: how accurate each one is, and which classes it holds."""

from __future__ import annotations

from fedrfq.report import marks
from fedrfq.report.clients_csv import ClientRow
from fedrfq.report.curves import HEAD, PROTOTYPE
from fedrfq.report.figure import Figure, Row, Spec, first_shown
from fedrfq.report.run_data import RunData

# More columns or rows than this are too thin to read.
_MAX_CLIENTS = 200
_MAX_CLASSES = 128
# Up to so many rows are drawn tall.
_FEW_CLASSES = 20


def accuracies(run: RunData) -> Figure | None:
    """Draw each client's accuracies after the last round."""
    clients = run.clients.last
    rows = [row for client in clients[:_MAX_CLIENTS] for row in _accuracy_rows(client)]
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["series"]) for row in rows))
    last = max(client.round for client in clients)
    caption = (
        f"Each client's test accuracy after round {last}, on test samples of the classes it holds."
    )
    if any(client.malicious for client in clients):
        caption += " Triangles mark malicious clients."
    caption += first_shown(_MAX_CLIENTS, len(clients), "clients")
    return Figure("clients", "Clients", caption, rows, _dumbbells(names))


def _accuracy_rows(client: ClientRow) -> list[Row]:
    """Return the client's accuracy by its own head and by the nearest prototype, where known."""
    accuracies = ((HEAD, client.accuracy), (PROTOTYPE, client.prototype_accuracy))
    return [
        {
            "client": client.number,
            "series": name,
            "accuracy": value,
            "classes": client.classes,
            "samples": client.samples,
            "role": "malicious" if client.malicious else "honest",
        }
        for name, value in accuracies
        if value is not None
    ]


def _dumbbells(names: list[str]) -> Spec:
    """Draw a dot and a ring for each client, joined by a line."""
    x = marks.clients()
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
    # A click on the legend works on one layer; the other follows by its opacity.
    # Rings go around the dots, so that both can be seen where the accuracies are equal.
    rings = {
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
    """Map how many samples of each class each client holds."""
    labels = sorted({share.label for share in run.shares})
    shown_labels = set(labels[:_MAX_CLASSES])
    rows: list[Row] = [
        {
            "client": share.client,
            "label": share.label,
            "class": run.name_of(share.label),
            "train": share.train,
            "test": share.test,
        }
        for share in run.shares
        if share.client < _MAX_CLIENTS and share.label in shown_labels
    ]
    if not rows:
        return None
    caption = (
        "How many training samples of each class each client holds. "
        "An empty cell means that the client holds none."
    )
    caption += first_shown(_MAX_CLASSES, len(labels), "classes")
    caption += first_shown(_MAX_CLIENTS, len({share.client for share in run.shares}), "clients")
    return holdings(rows, caption, test="test samples")


def holdings(rows: list[Row], caption: str, **more: str) -> Figure:
    """Draw a coloured cell for each class that each client holds; a hand on it shows `more`."""
    row_height = 13
    classes = len({row["class"] for row in rows})
    if classes <= _FEW_CLASSES:
        row_height = 22
    spec = {
        "height": row_height * classes,
        "mark": {"type": "rect", "cornerRadius": 2},
        "encoding": {
            "x": marks.clients(scale={"paddingInner": 0.08}, sort=None),
            "y": marks.classes(
                scale={"paddingInner": 0.1},
                axis={"labelLimit": 120, "grid": True, "zindex": 0, "labelOverlap": False},
            ),
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
            "tooltip": marks.tips(
                client="client", **{"class": "class"}, train="training samples", **more
            ),
        },
    }
    return Figure("partition", "Classes and clients", caption, rows, spec)
