"""Frontiers: accuracy against the bytes of a client in the whole run, nothing sent at 0."""

from pathlib import Path
from typing import Any

import pytest

from fedrfq.errors import UserError
from fedrfq.files.pictures import subplots
from fedrfq.paper.kinds import plan
from fedrfq.runs.session import pick_device
from fedrfq.studies.figure import frontier
from fedrfq.studies.grid import Grid
from fedrfq.studies.measures import MEASURES, MeasuredRuns
from fedrfq.studies.pictures import Facet, _draw_facet, points_line, styles
from support.studies import study_of

METHODS = ("local", "fedproto", "fedavg")
TABLE: dict[str, Any] = {
    "experiment": {"rounds": 2, "clients": 4, "partition": {"ways": 2, "spread": 0, "shots": 10}},
    "axes": {"method": {name: {"method": {"name": name}} for name in METHODS}},
    "series": "method",
    "measures": ["own"],
}


def test_each_method_is_a_point_over_its_bytes(tmp_path: Path) -> None:
    figure = plan(study_of("frontier", TABLE, seeds=2))
    device = pick_device("cpu")
    grid = Grid(figure.experiments, tmp_path, device, 200, False)
    for _ in grid.advance():
        pass
    wanted = frontier(study_of("frontier", TABLE, seeds=2))
    measured = MeasuredRuns.of(wanted.axes, grid.ended)
    ((facet,),) = wanted.facets(measured)
    assert facet.logarithmic
    assert facet.xlabel == "bytes per client in all, up and down"
    for name in METHODS:
        totals = [
            sum(record.bytes_up + record.bytes_down for record in records) / 4
            for (labels, _), records in measured.records.items()
            if labels == (name,)
        ]
        assert facet.lines[name].x == [pytest.approx(sum(totals) / 2)]
        assert facet.lines[name].y == [measured.spread("own", (name,))]
        # Round by round it is what a client has had so far.
        curve = measured.curve("traffic", (name,), 0)
        assert curve is not None
        assert curve[-1] == measured.value("traffic", (name,), 0)
        first = measured.records[(name,), 0][0]
        assert curve[0] == (first.bytes_up + first.bytes_down) / 4
    assert facet.lines["local"].x == [0.0]
    assert facet.lines["fedavg"].x[0] > facet.lines["fedproto"].x[0] > 0
    result = figure.show(grid.ended, tmp_path, device, lambda share, words: None)
    assert result.pictures[0].read_bytes().startswith(b"\x89PNG")
    assert [cell["traffic"]["mean"] for cell in result.whole["cells"]] == [
        facet.lines[name].x[0] for name in METHODS
    ]


@pytest.mark.parametrize(
    ("places", "scale"),
    [((100.0, 1e6), "log"), ((0.0, 100.0, 1e6), "symlog"), ((0.0,), "linear")],
)
def test_what_costs_nothing_is_on_the_axis_too(places: tuple[float, ...], scale: str) -> None:
    _, [[axes]] = subplots((4, 3))
    lines = {str(x): points_line({x: 50.0}) for x in places}
    _draw_facet(axes, Facet("", "", "", lines, logarithmic=True), styles(list(lines)))
    assert axes.get_xscale() == scale


def test_accuracy_on_all_classes_is_the_default_measure() -> None:
    table = {key: value for key, value in TABLE.items() if key != "measures"}
    if "accuracy_all" in MEASURES:
        assert frontier(study_of("frontier", table)).drawn == ("accuracy_all",)
    with pytest.raises(UserError, match="unknown key x"):
        frontier(study_of("frontier", {**TABLE, "x": "bytes"}))
