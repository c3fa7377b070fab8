"""Kind `frontier`: the accuracy that methods reach, against the bytes that they cost.

    kind = "frontier"
    series = "method"                an axis, with a colour for each of its labels
    panel = ["data"]                 optional, axes: a row of plots for each combination of labels
    measures = ["accuracy_all"]      optional: by default the accuracy on all classes

It is a figure (figure.py) whose x axis is fixed: the bytes that a client sends and receives in the
whole run. Each combination of labels is one point; points of one series are joined by a line.
"""

from __future__ import annotations

from dataclasses import replace

from fedrfq.studies import figure
from fedrfq.studies.figure import FigurePlan
from fedrfq.studies.study import Study

_X = "traffic"
_KEYS = tuple(key for key in figure.KEYS if key != "x")


def frontier(study: Study) -> FigurePlan:
    """Read and check a study of this kind."""
    study.check_keys(_KEYS)
    table = {"measures": ["accuracy_all"], **study.table, "x": _X}
    return FigurePlan.of(replace(study, table=table))
