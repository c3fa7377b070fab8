"""Figures of the common test: what clients know of classes they hold, and of those they do not."""

from __future__ import annotations

from fedrfq.report import marks
from fedrfq.report.clients_csv import ClientRow
from fedrfq.report.figure import Figure, Row, Spec, first_shown
from fedrfq.report.run_data import RunData
from fedrfq.runs.summary import last_tested

_HELD = "classes it holds"
_UNHELD = "classes it does not hold"
# The ways to predict, by the prefix of their figures in a record.
_WAYS = {
    "": "final prediction",
    "public_": "public map alone",
    "head_": "own head alone",
    "prototype_": "nearest prototype",
}
# More columns than this are too thin to read.
_MAX_CLIENTS = 200
_MAX_CLASSES = 128


def known(run: RunData) -> Figure | None:
    """Draw each client's accuracy on the classes that it holds, and on the others."""
    clients = run.clients.tested[:_MAX_CLIENTS]
    rows = [row for client in clients for row in _rows(client)]
    if not rows:
        return None
    last = max(client.round for client in clients)
    caption = (
        f"Each client's final prediction after round {last}, tested on the same samples of all "
        "classes, with all classes allowed as answers. Only exchange can teach a client classes "
        "that it does not hold."
    )
    caption += first_shown(_MAX_CLIENTS, len(run.clients.tested), "clients")
    return Figure("known", "Clients on all classes", caption, rows, _points())


def _rows(client: ClientRow) -> list[Row]:
    accuracies = ((_HELD, client.accuracy_held), (_UNHELD, client.accuracy_unheld))
    return [
        {
            "client": client.number,
            "series": name,
            "accuracy": value,
            "all": client.accuracy_all,
            "ece": client.ece,
            "classes": client.classes,
        }
        for name, value in accuracies
        if value is not None
    ]


def _points() -> Spec:
    """Draw a point for each client and kind of class."""
    return {
        "height": 240,
        "mark": {"type": "point", "filled": True, "size": 70},
        "params": [marks.switch("series")],
        "encoding": {
            "x": marks.clients(),
            "y": marks.axis("accuracy", marks.PERCENT),
            "color": marks.series([_HELD, _UNHELD]),
            "opacity": marks.shown(1),
            "tooltip": marks.tips(
                client="client",
                series="",
                accuracy="accuracy, %",
                all="on all classes, %",
                ece="calibration error (ECE), %",
                classes="classes it holds",
            ),
        },
    }


def recall(run: RunData) -> Figure | None:
    """Draw the recall of each class in the last round that has it, as the mean over clients."""
    record = last_tested(run.records)
    if record is None or record.recall is None:
        return None
    rows: list[Row] = [
        {"label": label, "class": run.name_of(label), "recall": value}
        for label, value in enumerate(record.recall[:_MAX_CLASSES])
        if value is not None
    ]
    if not rows:
        return None
    caption = (
        f"Of the samples of each class, how many the clients recognise after round {record.round}: "
        "mean over all clients, whether they hold the class or not."
    )
    caption += first_shown(_MAX_CLASSES, len(record.recall), "classes")
    return Figure("recall", "Recall of each class", caption, rows, _bars())


def _bars() -> Spec:
    """Draw a bar for each class."""
    return {
        "height": 200,
        "mark": {"type": "bar"},
        "encoding": {
            "x": marks.classes(axis={"labelAngle": 0, "labelLimit": 60, "labelOverlap": "greedy"}),
            "y": marks.axis("recall", "recall, %", scale={"domainMin": 0, "domainMax": 100}),
            "tooltip": [
                {"field": "class", "title": "class"},
                {"field": "recall", "title": "recall, %", "format": ".2f"},
            ],
        },
    }


def calibration(run: RunData) -> Figure | None:
    """Draw the calibration error of each way to predict, in the last round that has it."""
    record = last_tested(run.records)
    if record is None:
        return None
    found = {prefix: getattr(record, f"{prefix}ece") for prefix in _WAYS}
    if not run.experiment.public.used:
        # Without a map the final prediction is the head's, which need not be shown twice.
        del found["head_"]
    rows: list[Row] = [
        {"way": _WAYS[prefix], "ece": ece} for prefix, ece in found.items() if ece is not None
    ]
    if not rows:
        return None
    caption = (
        "How far a client's confidence lies from how often it is right, on samples of all classes "
        f"after round {record.round}: mean over clients. 0 is a client whose probabilities can be "
        "believed; an own head is sure of itself also where it has never seen the class."
    )
    return Figure("calibration", "Calibration error (ECE)", caption, rows, _ways(len(rows)))


def _ways(number: int) -> Spec:
    """Draw a bar for each way to predict."""
    return {
        "height": 34 * number,
        "mark": {"type": "bar"},
        "encoding": {
            "x": marks.axis("ece", "calibration error, %", scale={"domainMin": 0}),
            "y": {"field": "way", "type": "nominal", "title": None, "sort": None},
            "tooltip": marks.tips(way="", ece="calibration error (ECE), %"),
        },
    }
