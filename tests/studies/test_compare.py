"""Comparisons: the table agrees with the runs' records, and bad files are refused with advice."""

import csv
import math
import statistics

import pytest

from fedrfq.experiment import load
from fedrfq.studies.axes import experiment as combined
from fedrfq.studies.intervals import difference, quantile, spread
from support.command import fedrfq
from support.grids import comparison_of, grid_file, refused, run_of, table

TOP = """seeds = [0, 1, 2]
target = 60
controls = false
tune = []
axes.method = ["local", "fedproto", "fedrfq"]"""
SETTINGS = (
    "[axes.setting.few]\npartition = {ways = 2}\n[axes.setting.many]\npartition = {ways = 3}\n"
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    file = grid_file(folder, TOP, more=SETTINGS)
    done = fedrfq("compare", file, "--out", folder / "out", "--device", "cpu")
    return comparison_of(file), folder / "out", done


def test_the_table_is_that_of_the_records(compared):
    comparison, out, _ = compared
    cells = {(cell["setting"], cell["method"]): cell for cell in table(out)["cells"]}
    assert list(cells) == [(s, m) for s in ("few", "many") for m in ("local", "fedproto", "fedrfq")]
    for (setting, method), cell in cells.items():
        runs = [
            run_of(out, comparison.axes.experiments[(setting, method), seed]).rounds()
            for seed in (0, 1, 2)
        ]
        own = [records[-1].accuracy_mean for records in runs]
        assert cell["own"]["mean"] == pytest.approx(sum(own) / 3)
        assert cell["own"]["std"] == pytest.approx(statistics.stdev(own))
        assert cell["own_std"] == pytest.approx(
            sum(records[-1].accuracy_std for records in runs) / 3
        )
        reached = [
            next((r.round for r in records if r.accuracy_mean >= 60), None) for records in runs
        ]
        rounds = [number for number in reached if number is not None]
        assert cell["reached"] == len(rounds)
        assert cell["rounds_to_target"] == (
            pytest.approx(sum(rounds) / len(rounds)) if rounds else None
        )
        assert cell["bytes"] == pytest.approx(
            sum(r.bytes_up for records in runs for r in records) / 12
        )
        assert cell["parameters"] == pytest.approx(
            sum(r.parameters_up for records in runs for r in records) / 12
        )
        assert cell["seconds"] == pytest.approx(
            sum(r.seconds for records in runs for r in records) / 3
        )
        for name, field in {"all_classes": "accuracy_all", "unheld": "accuracy_unheld"}.items():
            assert cell[name]["mean"] == pytest.approx(
                sum(getattr(records[-1], field) for records in runs) / 3
            )
        if method == "local":
            assert cell["prototype"] is None
        else:
            assert cell["prototype"]["mean"] == pytest.approx(
                sum(r[-1].prototype_accuracy_mean for r in runs) / 3
            )


def test_differences_are_paired_over_seeds(compared):
    comparison, out, _ = compared
    pairs = {(p["setting"], p["method"], p["other"]): p for p in table(out)["pairs"]}
    assert len(pairs) == 3 * 6
    last = {
        place: run_of(out, experiment).rounds()[-1]
        for place, experiment in comparison.axes.experiments.items()
    }

    def own(setting, method, seed):
        return last[(setting, method), seed].accuracy_mean

    few = [own("few", "fedrfq", seed) - own("few", "fedproto", seed) for seed in (0, 1, 2)]
    many = [own("many", "fedrfq", seed) - own("many", "fedproto", seed) for seed in (0, 1, 2)]
    both = [(one + other) / 2 for one, other in zip(few, many, strict=True)]
    for setting, expected in {"few": few, "many": many, "all settings": both}.items():
        pair = pairs[setting, "fedrfq", "fedproto"]["own"]
        assert pair["mean"] == pytest.approx(sum(expected) / 3)
        assert pair["half"] == pytest.approx(
            4.302653 * statistics.stdev(expected) / math.sqrt(3), rel=1e-6
        )
        assert pairs[setting, "fedproto", "fedrfq"]["own"]["mean"] == pytest.approx(-pair["mean"])
    assert pairs["few", "fedrfq", "local"]["prototype"] is None
    for name, field in {"all_classes": "accuracy_all", "held": "accuracy_held"}.items():
        accuracies = [
            [getattr(last[("few", method), seed], field) for seed in (0, 1, 2)]
            for method in ("fedrfq", "local")
        ]
        expected = difference(*accuracies).mean
        assert pairs["few", "fedrfq", "local"][name]["mean"] == pytest.approx(expected)


def test_what_is_printed_and_written(compared):
    _, out, done = compared
    rows = list(csv.DictReader((out / "grid" / "table.csv").read_text().splitlines()))
    cells = table(out)["cells"]
    assert [float(row["own_mean"]) for row in rows] == [cell["own"]["mean"] for cell in cells]
    markdown = (out / "grid" / "table.md").read_text()
    for text in (done.stdout, markdown):
        own = cells[1]["own"]
        assert f"{own['mean']:.2f} ± {cells[1]['own_std']:.2f} (± {own['std']:.2f})" in text
        assert f"({cells[1]['reached']}/3)" in text
        assert "Differences from fedproto" in text
    on_all, held, unheld = [cells[1][name] for name in ("all_classes", "held", "unheld")]
    everywhere = f"{on_all['mean']:.2f} ± {on_all['std']:.2f}"
    assert f"| {everywhere} ({held['mean']:.2f} / {unheld['mean']:.2f}) |" in markdown
    pictures = sorted(path.name for path in (out / "grid").glob("*.png"))
    assert pictures == ["curves-1-few.png", "curves-2-many.png", "final.png"]
    assert all((out / "grid" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_again_prints_the_same_and_runs_nothing(compared):
    comparison, out, done = compared
    file = grid_file(out.parent, TOP, more=SETTINGS)
    assert fedrfq("compare", file, "--out", out, "--device", "cpu").stdout == done.stdout
    assert (
        "18 of them done; 0 to train"
        in fedrfq("compare", file, "--out", out, "--device", "cpu", "--dry-run").stderr
    )
    assert len(list((out / "grid").glob("*/experiment.toml"))) == len(comparison.experiments)


def test_interval_by_hand():
    """Differences 1, 2, 3, 4: mean 2.5, std √(5/3), t = 3.182446 with 3 degrees of freedom."""
    found = difference([11, 22, 33, 44], [10, 20, 30, 40])
    assert found.mean == 2.5
    assert found.std == pytest.approx(math.sqrt(5 / 3))
    assert found.half == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2, rel=1e-6)
    assert found.verdict == "better"
    assert difference([10, 20, 30, 40], [11, 22, 33, 44]).verdict == "worse"
    fewer = difference([10, 20, 30, 40], [11, 22, 33, 44], lower_is_better=True)
    assert (fewer.mean, fewer.verdict) == (-2.5, "better")
    assert difference([1, -1, 1, -1], [0, 0, 0, 0]).verdict == "undecided"


def test_what_is_missing_does_not_count():
    assert difference([1, None, 3], [0, 5, None]).count == 1
    assert difference([1, None], [None, 1]) is None
    assert spread([None, None]) is None
    assert spread([2.0]).half is None
    assert difference([9], [1]).verdict == "undecided"
    assert difference([2, 2], [1, 1]).verdict == "better"
    assert difference([2, 2], [2, 2]).verdict == "undecided"


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706205), (4, 2.776445), (30, 2.042272)])
def test_quantiles_of_the_printed_tables(freedom, expected):
    assert quantile(freedom) == pytest.approx(expected, rel=1e-6)


def test_a_label_lays_its_changes_over_the_experiment(tmp_path):
    own = '[axes.method."λ 0.5"]\nmethod = {name = "fedrfq", lam = 0.5}\npool = {stride = 2}'
    top = f'seeds = [3]\nname = "own name"\n[axes.method.local]\n{own}'
    comparison = comparison_of(
        grid_file(tmp_path, top, more="[axes.setting.wide]\npartition = {ways = 4}")
    )
    changed = comparison.axes.experiments[("wide", "λ 0.5"), 3]
    assert (changed.name, changed.seed, changed.rounds) == ("own name", 3, 4)
    assert (changed.partition.ways, changed.method.lam, changed.pool.stride) == (4, 0.5, 2)
    assert comparison.axes.experiments[("wide", "local"), 3].pool.name == "none"
    assert comparison.against == ("local", "λ 0.5")


def test_a_label_that_is_a_dataset_chooses_it(tmp_path):
    """Any other label is called as the user likes, and changes what it says."""
    top = 'seeds = [3]\naxes.method = ["local"]'
    more = '[axes.data.femnist]\n[axes.data.small]\ndata = {name = "mnist5k"}'
    experiments = comparison_of(grid_file(tmp_path, top, more=more)).axes.experiments
    by_label = {labels: experiment.data.name for (labels, _), experiment in experiments.items()}
    assert set(by_label.values()) == {"femnist", "mnist5k"}


def test_changing_the_kind_leaves_the_old_ones_options():
    layers = [
        {"partition": {"ways": 2}, "method": {"lam": 0.5}},
        {"partition": {"name": "iid"}, "method": {"name": "local"}},
    ]
    experiment = combined("here", "name", 1, layers)
    assert experiment.method == load(sets=["method.name=local"]).method
    assert experiment.partition == load(sets=["partition.name=iid"]).partition


BAD = {
    'seeds = [0]\naxes.methods = ["local"]': "write axes.method for axes.methods",
    "seed = [0]": "did you mean seeds?",
    'seeds = "two"\naxes.method = ["local"]': "seeds must be how many",
    'seeds = []\naxes.method = ["local"]': "seeds must be a list",
    'seeds = [0, 1, 0]\naxes.method = ["local"]': "seeds has 0 more than once",
    'seeds = [0, true]\naxes.method = ["local"]': "seeds must be a list",
    "seeds = [0]": "axes.method is missing; the axes are none",
    'seeds = [0]\naxes.metod = ["local"]': "write axes.method for axes.metod",
    'seeds = [0]\naxes.method = ["local"]\naxes.attackers = [1, "1"]': "has '1' more than once",
    "seeds = [0]\naxes.method = []": "axes.method must be sections",
    'seeds = [0]\naxes.method = ["fedprox", "fedprotto"]': "did you mean fedproto?",
    'seeds = [0]\naxes.method = ["tgp"]': "(did you mean fedtgp?); your own: --plugin FILE",
    'seeds = [0]\naxes.committee = ["mine"]\naxes.method = ["local"]': "not 'mine'\n",
    'seeds = [0]\naxes.method = ["local", "local"]': "more than once",
    'seeds = [0]\naxes.method = ["local"]\naxes.setting = {}': "axes.setting must be sections",
    'seeds = [0]\naxes.method = ["local"]\ntarget = 300': "target must be an accuracy",
    'seeds = [0]\naxes.method = ["local"]\nagainst = ["fedproto"]': "against must be a list of",
    'seeds = [0]\nname = "a/b"\naxes.method = ["local"]': "name must be a plain folder name",
    "seeds = [0]\n[axes.method.fedrfq]\nmethod = {lamb = 1}": "did you mean lam?",
    "seeds = [0]\n[axes.method.local]\nseed = 4": "seed cannot be set here",
    "seeds = [0]\n[axes.method.fedprotto]": "did you mean fedproto?",
    'seeds = [0]\n[axes.method]\nlocal = "yes"': "local must be a section",
}


@pytest.mark.parametrize(("top", "says"), BAD.items())
def test_bad_files(tmp_path, top, says):
    assert says in refused("compare", grid_file(tmp_path / "bad", top), tmp_path / "out")


def test_a_bad_experiment_names_where_it_is(tmp_path):
    more = "[axes.setting.odd]\npartition = {wayz = 2}"
    said = refused(
        "compare",
        grid_file(tmp_path / "bad", 'seeds = [0]\naxes.method = ["local"]', more=more),
        tmp_path / "out",
    )
    assert "setting 'odd', method 'local'" in said
    assert "did you mean ways?" in said


def test_no_file(tmp_path):
    assert "examples/compare.toml" in refused("compare", tmp_path / "none.toml", tmp_path / "out")


def test_help_gives_an_example():
    for name in ("compare", "robustness"):
        assert f"Example: fedrfq {name} examples/{name}.toml" in fedrfq(name, "--help").stdout
