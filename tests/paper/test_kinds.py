"""Studies: grids of axes, paper beside measured figures, judged claims, nothing computed twice."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedrfq.errors import UserError
from fedrfq.files import toml
from fedrfq.paper.kinds import plan
from fedrfq.paper.printed import printed
from fedrfq.paper.tables import TablePlan
from fedrfq.runs.session import pick_device
from fedrfq.studies.axes import Axes
from fedrfq.studies.claims import Judged
from fedrfq.studies.figure import FigurePlan
from fedrfq.studies.grid import Grid
from fedrfq.studies.intervals import difference
from fedrfq.studies.measures import MEASURES, MeasuredRuns
from fedrfq.studies.study import Study, names
from support.command import fedrfq
from support.studies import study_of

# What the paper shows: further studies may stand beside these, and are tested like them.
OF_THE_PAPER = {
    *("table1", "table2", "table3", "rounds", "silhouette", "pooling", "poisoning", "lambda"),
    *("servers", "scarce", "security", "lipschitz", "bound", "failures"),
}
GRIDS = [name for name in names() if Study.load(name).kind in ("table", "figure")]
SMALL = {
    "rounds": 2,
    "clients": 4,
    "partition": {"ways": 2, "spread": 0},
    "data": {"name": "mnist5k"},
}
METHODS = {name: {"method": {"name": name}} for name in ("local", "fedproto", "fedrfq")}
SETTINGS = {"3 ± 2": {}, "4 ± 2": {"partition": {"ways": 3}}}
GRID = {"experiment": SMALL, "axes": {"setting": SETTINGS, "method": METHODS}}


def axes(**table: Any) -> Axes:
    return Axes.of(study_of("figure", {**GRID, **table}, seeds=2))


def test_every_study_of_the_paper_is_there_and_can_be_planned() -> None:
    assert set(names()) >= OF_THE_PAPER
    for name in GRIDS:
        for quick in (False, True):
            wanted = plan(Study.load(name, quick)).experiments
            assert wanted
            assert not quick or {experiment.data.name for experiment in wanted} == {"mnist5k"}
    assert all(plan(Study.load(name, quick=True)) for name in names())


@pytest.mark.parametrize("kind", ["security", "lipschitz", "bound", "failures"])
def test_what_is_no_grid_has_a_study_of_its_own_kind(kind: str) -> None:
    assert Study.load(kind).kind == kind


def test_the_tables_have_the_protocols_settings() -> None:
    expected = {
        "table1": ("mnist", 5, 240, 100, 1.0, 40),
        "table2": ("femnist", 5, 240, 120, 1.0, 15),
        "table3": ("cifar10", 2, 41, 110, 0.1, 15),
    }
    for name, (data, seeds, runs, rounds, lam, test_shots) in expected.items():
        wanted = plan(Study.load(name)).experiments
        assert (len(wanted), {e.data.name for e in wanted}) == (runs, {data})
        assert {e.seed for e in wanted} == set(range(seeds))
        assert {(e.rounds, e.clients, e.train.lr, e.train.momentum) for e in wanted} == {
            (rounds, 20, 0.01, 0.5)
        }
        assert {(e.partition.shots, e.partition.test_shots) for e in wanted} == {(100, test_shots)}
        assert {e.train.batch_size for e in wanted} == {32 if data == "cifar10" else 4}
        assert {e.method.lam for e in wanted if hasattr(e.method, "lam")} == {lam}
        assert {e.validation for e in wanted} == {0.0}


def test_the_papers_tables_are_whole() -> None:
    for table, spreads in (("table1", (2, 3)), ("table2", (1, 2)), ("table3", (1, 2))):
        rows = printed(table)
        assert sorted(rows) == sorted(
            ["local", "fesem", "fedprox", "fedper", "fedavg", "fedrep", "fedproto", "fedrfq"]
        )
        for row in rows.values():
            assert sorted(row.accuracy) == sorted(
                f"{ways} ± {spread}" for ways in (3, 4, 5) for spread in spreads
            )
    assert printed("table1")["fedrfq"].accuracy["3 ± 2"] == (98.41, 0.25)
    assert (printed("table1")["fedrfq"].parameters, printed("table1")["fedprox"].rounds) == (
        1920,
        110,
    )
    assert printed("table2")["fedavg"].accuracy["5 ± 2"] == (89.80, 6.94)
    assert printed("table3")["fedper"].accuracy["5 ± 2"] == (72.43, 4.55)
    assert printed("table3")["fedproto"].accuracy["3 ± 1"] == (84.49, 1.97)
    assert printed("table3")["fedavg"].parameters == 235_000_000
    with pytest.raises(UserError, match="table1, table2, table3"):
        printed("table4")


def test_axes_are_combined_with_every_seed() -> None:
    found = axes()
    assert len(found.experiments) == 2 * 3 * 2
    ways = {labels: e.partition.ways for (labels, _), e in found.experiments.items()}  # type: ignore[attr-defined]
    assert (ways["3 ± 2", "local"], ways["4 ± 2", "local"]) == (2, 3)
    assert {e.name for e in found.experiments.values()} == {"reproduced"}
    assert (
        {seed for _, seed in found.experiments}
        == {e.seed for e in found.experiments.values()}
        == {0, 1}
    )


def test_only_some_labels_and_rules_for_some_combinations() -> None:
    found = axes(
        only={"method": ["fedrfq", "local"]},
        where=[{"setting": "4 ± 2", "method": ["local"], "skip": True}],
    )
    assert found.combinations() == [("3 ± 2", "local"), ("3 ± 2", "fedrfq"), ("4 ± 2", "fedrfq")]
    found = axes(where=[{"method": "local", "seeds": 1}])
    assert [seed for labels, seed in found.experiments if labels == ("3 ± 2", "local")] == [0]
    assert [seed for labels, seed in found.experiments if labels == ("3 ± 2", "fedrfq")] == [0, 1]
    change = {"setting": "3 ± 2", "method": "fedrfq", "change": {"method": {"lam": 0.5}}}
    lam = {
        labels: e.method.lam
        for (labels, _), e in axes(where=[change]).experiments.items()
        if labels[1] == "fedrfq"
    }  # type: ignore[attr-defined]
    assert lam == {("3 ± 2", "fedrfq"): 0.5, ("4 ± 2", "fedrfq"): 1.0}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"only": {"method": ["fedrf"]}}, "only.method must be a list of labels"),
        (
            {"where": [{"method": "fedrf", "skip": True}]},
            "method has no label 'fedrf' .did you mean fedrfq",
        ),
        ({"where": [{"method": "fedrfq", "leave": True}]}, "a rule has exactly one of"),
        ({"where": [{"method": "fedrfq", "seeds": "x"}]}, "a rule has exactly one of"),
        ({"where": [{"method": "fedrfq", "seeds": 0}]}, "a rule has exactly one of"),
        ({"where": [{"method": "fedrfq", "change": 3}]}, "a rule has exactly one of"),
        ({"where": [{"method": "fedrfq"}]}, "a rule has exactly one of"),
        ({"where": [{"method": [["fedrfq"]], "skip": True}]}, "method has no label"),
        ({"only": {"methods": ["fedrfq"]}}, "unknown key only.methods"),
        ({"only": {"method": [["fedrfq"]]}}, "only.method must be a list of labels"),
        ({"where": [{"setting": ["3 ± 2", "4 ± 2"], "skip": True}]}, "no combination"),
        ({"axes": {"method": {"x": {"method": {"name": "fedrf"}}}}}, "method 'x'"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        axes(**table)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"series": "method", "x": "setting"}, "measures must be a list of measures"),
        (
            {"measures": [["own"]], "series": "method", "x": "setting"},
            "measures must be a list of measures",
        ),
        (
            {"measures": ["own"], "series": "method", "x": "setting", "panel": 3},
            "panel must be a list of axes",
        ),
        (
            {"measures": ["own"], "series": "method", "x": "round"},
            "axis 'setting' is not used as x, series or panel",
        ),
        ({"measures": ["own"], "series": "methods", "x": "setting"}, "no axis 'methods'"),
        ({"measures": ["own"], "series": "method"}, "x is missing; name one of the axes"),
        (
            {"measures": ["own"], "series": "method", "x": "setting", "colour": 1},
            "unknown key colour",
        ),
        (
            {
                "measures": ["own"],
                "series": "method",
                "x": "setting",
                "claims": [{"better": {"method": "x"}}],
            },
            "claims",
        ),
    ],
)
def test_a_figure_that_cannot_be_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        FigurePlan.of(study_of("figure", {**GRID, **table}))


@pytest.mark.parametrize(
    ("own", "others", "verdict"),
    [
        ([90.0, 91.0, 92.0], [[80.0, 81.1, 82.0], [70.0, 71.0, 72.1]], "holds"),
        ([90.0, 91.0, 92.0], [[80.0, 81.1, 82.0], [95.0, 96.1, 97.0]], "fails"),
        ([90.0, 91.0, 92.0], [[80.0, 81.1, 82.0], [89.0, 92.0, 91.0]], "undecided"),
        ([90.0], [[80.0]], "undecided"),
    ],
)
def test_a_claim_holds_against_all_fails_against_one_or_is_undecided(
    own: list[float], others: list[list[float]], verdict: str
) -> None:
    found = {str(i): difference(own, other) for i, other in enumerate(others)}
    assert (
        Judged("", "own", "", {label: d for label, d in found.items() if d is not None}).verdict
        == verdict
    )


def test_the_closest_rival_is_the_best_of_them() -> None:
    found = {str(i): difference([5.0, 5.0], [other, other]) for i, other in enumerate((1.0, 4.0))}
    differences = {label: lead for label, lead in found.items() if lead is not None}
    closest = [Judged("", name, "", differences).closest() for name in ("own", "bytes")]
    assert [rival for rival, _ in filter(None, closest)] == ["1", "0"]


@pytest.fixture(scope="module")
def table1(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("reproduced")
    text = "\n".join(
        [
            'title = "A small table"\nkind = "table"\nclaim = "FedRFQ is first."',
            'seeds = 2\npaper = "table1"',
            "experiment = {rounds = 2, clients = 4, data = {name = 'mnist5k'}}",
            "[axes.setting]",
            "'3 ± 2' = {partition = {ways = 2}}",
            "'4 ± 2' = {partition = {ways = 3}}",
            "[axes.method]",
            "local = {method = {name = 'local'}}",
            "fedrfq = {method = {name = 'fedrfq'}}",
            '[[claims]]\nsays = "FedRFQ is best"\nmeasure = "own"\nbetter = {method = "fedrfq"}',
            "[quick]\nseeds = 1",
        ]
    )
    (folder / "small.toml").write_text(text, encoding="utf-8")
    done = fedrfq(
        "reproduce", folder / "small.toml", "--out", folder / "out", "--device", "cpu", "--json"
    )
    return folder, done


def test_paper_and_measured_stand_side_by_side(table1: tuple[Path, Any]) -> None:
    folder, done = table1
    whole = json.loads((folder / "out/reproduce/small/table.json").read_text())
    cells = {(cell["setting"], cell["method"]): cell for cell in whole["cells"]}
    assert {place: cell["paper"] for place, cell in cells.items()} == {
        ("3 ± 2", "local"): 94.05,
        ("3 ± 2", "fedrfq"): 98.41,
        ("4 ± 2", "local"): 93.35,
        ("4 ± 2", "fedrfq"): 97.67,
    }
    runs = [
        json.loads(path.read_text()) for path in (folder / "out/reproduced").glob("*/result.json")
    ]
    assert len(runs) == 8
    for cell in cells.values():
        assert cell["difference"] == pytest.approx(cell["own"]["mean"] - cell["paper"])
        assert cell["own"]["count"] == 2
        assert cell["own"]["mean"] * 2 == pytest.approx(
            sum(
                run["own"]
                for run in whole["runs"]
                if (run["setting"], run["method"]) == (cell["setting"], cell["method"])
            )
        )
    assert sorted(run["own"] for run in whole["runs"]) == sorted(
        run["accuracy_mean"] for run in runs
    )
    assert whole["made"]["command"].startswith("fedrfq reproduce ")
    assert list(whole["made"]["data"]) == ["mnist5k"]
    text = (folder / "out/reproduce/small/table.md").read_text()
    assert "The paper: FedRFQ is first." in text
    assert "mean over 2 seeds ±" in text
    assert f"98.41 → {cells['3 ± 2', 'fedrfq']['own']['mean']:.2f}" in text
    assert [claim["where"] for claim in whole["claims"]] == ["3 ± 2", "4 ± 2", "all together"]
    assert {claim["verdict"] for claim in whole["claims"]} <= {"holds", "fails", "undecided"}
    assert whole["claims"][0]["verdict"] in done.stdout
    rows = list(csv.DictReader((folder / "out/reproduce/small/table.csv").open()))
    assert [row["paper"] for row in rows] == ["94.05", "98.41", "93.35", "97.67"]
    assert (folder / "out/reproduce/small/figure.png").read_bytes().startswith(b"\x89PNG")


def test_what_has_ended_is_never_computed_again_whichever_study_asks(
    table1: tuple[Path, Any],
) -> None:
    folder, _ = table1
    before = {
        path: path.stat().st_mtime_ns for path in (folder / "out/reproduced").rglob("*.jsonl")
    }
    again = fedrfq(
        "reproduce", folder / "small.toml", "--quick", "--out", folder / "out", "--device", "cpu"
    )
    assert "4 runs, 4 of them done; 0 to train" in again.stderr
    text = (folder / "small.toml").read_text(encoding="utf-8")
    figure = text.replace('kind = "table"', 'kind = "figure"').replace(
        'paper = "table1"',
        'measures = ["own", "bytes"]\nx = "round"\nseries = "method"\npanel = ["setting"]',
    )
    (folder / "curves.toml").write_text(figure, encoding="utf-8")
    curves = fedrfq("reproduce", folder / "curves.toml", "--out", folder / "out", "--device", "cpu")
    assert "8 runs, 8 of them done; 0 to train" in curves.stderr
    assert {
        path: path.stat().st_mtime_ns for path in (folder / "out/reproduced").rglob("*.jsonl")
    } == before
    rows = list(csv.DictReader((folder / "out/reproduce/curves/table.csv").open()))
    assert [(row["round"], row["setting"], row["method"]) for row in rows[:3]] == [
        ("1", "3 ± 2", "local"),
        ("2", "3 ± 2", "local"),
        ("1", "3 ± 2", "fedrfq"),
    ]


def test_a_figure_says_of_how_many_seeds_each_mean_is(table1: tuple[Path, Any]) -> None:
    folder, _ = table1
    text = (
        (folder / "small.toml")
        .read_text(encoding="utf-8")
        .replace('kind = "table"', 'kind = "figure"')
    )
    text = text.replace('paper = "table1"', 'measures = ["own"]\nx = "setting"\nseries = "method"')
    (folder / "fewer.toml").write_text(
        text + '\n[[where]]\nmethod = "local"\nseeds = 1', encoding="utf-8"
    )
    fedrfq("reproduce", folder / "fewer.toml", "--out", folder / "out", "--device", "cpu")
    text = (folder / "out/reproduce/fewer/table.md").read_text(encoding="utf-8")
    assert "| 3 ± 2 | local | 1 |" in text
    assert "| 3 ± 2 | fedrfq | 2 |" in text
    assert "Mean over 1 to 2 seeds" in text


def test_some_labels_on_the_command_line(table1: tuple[Path, Any]) -> None:
    folder, _ = table1
    done = fedrfq(
        "reproduce",
        folder / "small.toml",
        "--only",
        "setting=3 ± 2",
        "--seeds",
        "1",
        "--dry-run",
        "--out",
        folder / "out",
    )
    assert "2 runs, 2 of them done" in done.stderr
    assert (
        "AXIS=LABEL"
        in fedrfq("reproduce", folder / "small.toml", "--only", "setting", expect=2).stderr
    )


def test_the_studies_are_listed_and_a_wrong_name_is_met_with_the_nearest() -> None:
    listed = fedrfq("reproduce").stdout
    assert all(name in listed for name in names())
    assert "did you mean table1" in fedrfq("reproduce", "tabel1", expect=2).stderr


def tiny(name: str) -> Study:
    """Return a study cut down to one seed and two labels of each axis."""
    quick = Study.load(name, quick=True, seeds=1)
    wanted = quick.table.get("only", {})
    only = {
        axis: list(wanted.get(axis, labels))[:2] for axis, labels in quick.table["axes"].items()
    }
    return Study.load(name, True, 1, only)


@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_of_the_paper_gives_its_table_and_picture(name: str, tmp_path: Path) -> None:
    small = tiny(name)
    table = toml.merge(small.table, {"experiment": {"rounds": 1, "clients": 5}})
    cut = replace(small, table=table)
    wanted = plan(cut)
    device = pick_device("cpu")
    grid = Grid(wanted.experiments, tmp_path, device, 200, wanted.keep)
    for _ in grid.advance():
        pass
    found = wanted.show(grid.ended, tmp_path, device, lambda share, words: None)
    assert found.rows
    assert all(len(sheet.header) == len(row) for sheet in found.sheets for row in sheet.rows)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in found.pictures)
    json.dumps(found.whole, allow_nan=False)


def test_figures_stand_on_numbers_labels_or_measures(table1: tuple[Path, Any]) -> None:
    """Check only the lines: their places on the x axis."""
    folder, _ = table1
    base = toml.read(folder / "small.toml")
    base = {key: base[key] for key in ("experiment", "axes")}
    grid = Grid(
        TablePlan.of(study_of("table", {**base, "paper": "table1"}, 2)).experiments,
        folder / "out",
        pick_device("cpu"),
        200,
        False,
    )
    assert not grid.stacks

    def places(**table: Any) -> list[Any]:
        figure = FigurePlan.of(
            study_of("figure", {**base, "measures": ["own"], "series": "method", **table}, 2)
        )
        facet = figure.facets(MeasuredRuns.of(figure.axes, grid.ended))[0][0]
        return list(facet.lines["fedrfq"].x)

    assert places(x="setting") == ["3 ± 2", "4 ± 2"]
    turned = {
        "setting": dict(reversed(base["axes"]["setting"].items())),
        "method": base["axes"]["method"],
    }
    assert places(x="bytes", axes=turned) == sorted(places(x="bytes"))
    assert len(set(places(x="bytes"))) == 2
    numbered = {
        "axes": {
            "method": base["axes"]["method"],
            "ways": {"2": base["axes"]["setting"]["3 ± 2"], "3": {"partition": {"ways": 3}}},
        }
    }
    assert places(x="ways", **numbered) == [2.0, 3.0]


def test_measures_say_what_they_are() -> None:
    assert all(
        measure.title and bool(measure.of_round) != bool(measure.summary_key)
        for measure in MEASURES.values()
    )


def test_runs_left_half_way_are_gone_on_with_or_begun_again(tmp_path: Path) -> None:
    table = toml.merge(
        GRID,
        {"experiment": {"checkpoint": 1}, "only": {"setting": ["3 ± 2"], "method": ["fedrfq"]}},
    )
    wanted = list(Axes.of(study_of("figure", table)).experiments.values())
    device = pick_device("cpu")
    left = Grid(wanted, tmp_path, device, 200, keep=True)
    next(left.advance())
    left.checkpoint()
    assert len(Grid(wanted, tmp_path, device, 200, keep=True).stacks[0].runs) == 1
    assert Grid(wanted, tmp_path, device, 200, keep=True, resume=False).stacks[0].runs == ()


def test_a_claim_is_judged_where_its_labels_are_and_over_all_of_that(
    table1: tuple[Path, Any],
) -> None:
    folder, _ = table1
    done = fedrfq(
        "reproduce",
        folder / "small.toml",
        "--only",
        "setting=3 ± 2",
        "--out",
        folder / "out",
        "--device",
        "cpu",
    )
    assert "all together" not in done.stdout
    fedrfq(
        "reproduce",
        folder / "small.toml",
        "--only",
        "method=local",
        "--out",
        folder / "out",
        "--device",
        "cpu",
    )
    whole = json.loads((folder / "out/reproduce/small/table.json").read_text())
    assert whole["claims"] == []


def test_traffic_is_the_mean_over_rounds(table1: tuple[Path, Any]) -> None:
    """A count that changes from round to round is averaged over the rounds."""
    folder, _ = table1
    base = toml.read(folder / "small.toml")
    axes = Axes.of(study_of("table", {key: base[key] for key in ("experiment", "axes")}, 2))
    measured = MeasuredRuns.of(
        axes, Grid(axes.experiments.values(), folder / "out", pick_device("cpu"), 200, False).ended
    )
    place = next(iter(measured.records))
    first, last = measured.records[place]
    assert measured.value("own", *place) == last.accuracy_mean
    records = [replace(first, parameters_up=10), replace(last, parameters_up=20)]
    assert MEASURES["parameters"].of(records, {}, clients=4) == 15


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("quick = 3", "quick must be a section"),
        ("claim = 3", "claim must be a line of text"),
        ('seeds = "two"', "seeds must be how many"),
        ("title = 3", "title must be a line of text"),
        ("title = ", "cannot be read as TOML"),
    ],
)
def test_a_file_that_is_no_study_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(
        text if "title" in text else f'title = "x"\nkind = "figure"\n{text}', encoding="utf-8"
    )
    with pytest.raises(UserError, match=said):
        Study.load(str(file), quick=True)
    with pytest.raises(UserError, match="there is no study"):
        Study.load(str(tmp_path / "nowhere.toml"))
