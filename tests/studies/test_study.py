"""Study files: axes and their short forms, and equal experiments."""

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.data.partition import Classes
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, load
from fedrfq.files.strict_json import to_json
from fedrfq.paper.kinds import plan
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.studies.equality import rerun_key, run_key
from fedrfq.studies.grid import Grid
from fedrfq.studies.reruns import Reruns
from fedrfq.studies.study import Study
from support.command import CPU, fedrfq
from support.grids import comparison_of, found, grid_file, refused, table
from support.paths import EXAMPLES

# With four classes, 1 ± 2 of them are 2 to 3, and so are 2 ± 1.
EQUAL = """[axes.setting.one]
partition = {ways = 1, spread = 2}
[axes.setting.other]
partition = {ways = 2, spread = 1}
[axes.setting.third]
partition = {ways = 3, spread = 0}
"""
TOP = 'seeds = [0, 1]\ncontrols = false\ntune = []\naxes.method = ["local", "fedproto"]'


def study(folder: Path, top: str, kind: str = "compare", more: str = "") -> Study:
    return Study.load(grid_file(folder, top, more=more), kind=kind)


def experiments(wanted: Study) -> list[Experiment]:
    return list(plan(wanted).experiments)


@pytest.mark.parametrize(
    ("old", "axis"), [("methods", "method"), ("detectors", "detector"), ("attackers", "attackers")]
)
def test_files_from_before_there_were_axes_are_told_the_axis(tmp_path, old, axis):
    said = refused("compare", grid_file(tmp_path, f"{old} = [1]"), tmp_path / "out")
    assert f"{old} are an axis now: write axes.{axis} = [" in said


def test_a_study_of_another_kind_is_refused_with_the_command_that_takes_it():
    said = fedrfq("compare", EXAMPLES / "robustness.toml", "--dry-run", expect=2).stderr
    assert "is a study of the kind 'robustness', not 'compare'" in said
    assert f"fedrfq robustness {EXAMPLES / 'robustness.toml'}" in said
    done = fedrfq("reproduce", EXAMPLES / "robustness.toml", "--dry-run")
    assert "12 runs, 0 of them done" in done.stderr


def test_a_list_is_enough_where_an_axis_is_a_section(tmp_path):
    top = 'seeds = 2\nmeasures = ["own"]\nx = "model"\nseries = "method"\n'
    lists = 'axes.model = ["mlp", "cnn"]\naxes.method = ["local", "fedproto"]'
    wanted = plan(study(tmp_path, f"{top}{lists}", "figure"))
    assert wanted.axes.labels == {"model": ("mlp", "cnn"), "method": ("local", "fedproto")}
    names = {(type(e.model).__name__, type(e.method).__name__) for e in wanted.experiments}
    assert names == {(a, b) for a in ("MLP", "CNN") for b in ("Local", "FedProto")}
    assert {e.seed for e in wanted.experiments} == {0, 1}


def test_a_list_of_values_is_enough_for_any_key_of_the_experiment(tmp_path):
    wanted = plan(study(tmp_path, f"{TOP}\naxes.rounds = [1, 2]"))
    assert {one.rounds for one in wanted.experiments} == {1, 2}
    assert wanted.settings == ["1", "2"]
    # Labels that are numbers may be written as numbers.
    rule = "\n[[where]]\nrounds = 1\nmethod = 'local'\nskip = true\n"
    wanted = plan(
        study(tmp_path, f"{TOP}\naxes.rounds = [1, 2, 3]\nonly.rounds = [1, 2]", more=rule)
    )
    assert wanted.axes.combinations() == [("1", "fedproto"), ("2", "local"), ("2", "fedproto")]


CLAIM = '[[claims]]\nsays = "it is better"\nmeasure = "own"\nbetter = {method = "fedproto"}\n'


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (CLAIM.replace("better =", "than ="), "claims: write better = "),
        (CLAIM.replace("}", ', other = "fedproto"}'), "claims: write better = "),
        (CLAIM.replace('better = {method = "fedproto"}', ""), "claims: write better = "),
        (f'{CLAIM}than = {{method = "fedproto"}}', "claims: write better = "),
        (CLAIM.replace('d = "fedproto"', 'd = "fedprot"'), "did you mean fedproto"),
        (
            CLAIM.replace('"own"', '"onw"'),
            "must be a measure, not .onw. .did you mean own.*; they are own, ",
        ),
        (CLAIM.replace('measure = "own"', ""), "claims.measure must be a measure, not ''"),
    ],
)
def test_bad_claims(tmp_path, claim, said):
    with pytest.raises(UserError, match=said):
        plan(study(tmp_path, TOP, more=claim))


def test_claims_know_the_accuracies_that_a_kind_names_otherwise(tmp_path):
    claim = CLAIM.replace('"own"', '"all_classes"')
    assert plan(study(tmp_path, TOP, more=claim)).claims[0].measure == "all_classes"


def test_fewer_bytes_are_better(equal, tmp_path):
    """FedProto sends prototypes and Local nothing, so Local is the better one."""
    file, out, _ = equal
    cheap = CLAIM.replace('"own"', '"bytes"')
    claims = cheap + cheap.replace('"fedproto"', '"local"')
    again = tmp_path / "grid.toml"
    again.write_text(file.read_text() + claims)
    shutil.copytree(out, tmp_path / "out")
    fedrfq("compare", again, "--out", tmp_path / "out", "--device", "cpu")
    claims = table(tmp_path / "out")["claims"]
    verdicts = [one["verdict"] for one in claims if one["where"] == "third"]
    assert verdicts == ["fails", "holds"]


def test_all_axes_but_the_methods_make_up_the_settings(tmp_path):
    more = "[axes.width.narrow]\nmodel = {width = 4}\n[axes.width.wide]\n"
    file = grid_file(tmp_path, TOP, more=EQUAL + more)
    assert comparison_of(file).settings[:3] == ["one, narrow", "one, wide", "other, narrow"]


@pytest.mark.parametrize(
    ("ways", "spread", "low", "high"),
    [(3, 3, 2, 6), (4, 2, 2, 6), (3, 2, 2, 5), (5, 2, 3, 7), (1, 0, 1, 1), (1, 4, 2, 5)],
)
def test_the_simplest_partition_draws_the_same(ways, spread, low, high):
    simplest = Classes(ways, spread).simplest()
    assert simplest._range() == Classes(ways, spread)._range() == (low, high)
    assert simplest.spread <= spread
    assert simplest.simplest() == simplest
    normal = Classes(ways, spread, draw="normal")
    assert normal.simplest() == normal


def test_equal_experiments_have_one_key_and_reruns_share_another():
    three = load(sets=["partition.ways=3", "partition.spread=3"])
    four = load(sets=["partition.ways=4", "partition.spread=2"])
    assert run_key(three) == run_key(four)
    assert three.hash() != four.hash()
    again = replace(four, name="another", checkpoint=7)
    assert run_key(again) != run_key(four)
    assert rerun_key(again) == rerun_key(three)
    assert rerun_key(again) != rerun_key(replace(three, seed=1))


@pytest.fixture(scope="module")
def equal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("equal")
    file = grid_file(folder, TOP, more=EQUAL)
    return file, folder / "out", fedrfq("compare", file, "--out", folder / "out", "--device", "cpu")


def test_equal_settings_are_run_once_and_shown_under_both_labels(equal):
    _, out, done = equal
    assert "8 runs, 0 of them done; 8 to train" in done.stderr
    assert len(found(out)) == 8
    whole = table(out)
    assert whole["equal"] == {"other": "one"}
    own = {(run["setting"], run["method"], run["seed"]): run["own"] for run in whole["runs"]}
    assert len(own) == 12
    assert all(
        own["one", m, s] == own["other", m, s] for m in ("local", "fedproto") for s in (0, 1)
    )
    assert "other is the same experiment as one: run once" in done.stdout


def test_equal_settings_count_once_in_the_mean_over_all(equal):
    _, out, _ = equal
    pairs = {(p["setting"], p["method"], p["other"]): p["own"] for p in table(out)["pairs"]}
    one, third, together = (
        pairs[setting, "fedproto", "local"]["mean"] for setting in ("one", "third", "all settings")
    )
    assert together == pytest.approx((one + third) / 2)


def test_a_finished_run_of_an_equal_experiment_will_do_but_not_one_that_was_begun(equal, tmp_path):
    file, out, _ = equal
    shutil.copytree(out / "grid", tmp_path / "grid")
    named_otherwise = EQUAL.replace("ways = 1, spread = 2", "ways = 2, spread = 1")
    (tmp_path / "grid.toml").write_text(file.read_text().replace(EQUAL, named_otherwise))
    wanted = comparison_of(tmp_path / "grid.toml").experiments
    grid = Grid(wanted, tmp_path, CPU, 200, True)
    assert (len(grid.ended), grid.stacks) == (8, ())
    # Its checkpoint belongs to the other experiment.
    for path in (tmp_path / "grid").glob("*/result.json"):
        path.unlink()
    grid = Grid(wanted, tmp_path, CPU, 200, True)
    resumed = {run.experiment().partition.spread for stack in grid.stacks for run in stack.runs}
    assert resumed == {0}


def test_differences_are_taken_from_local_and_from_fedproto(equal, tmp_path):
    file, out, done = equal
    assert "Differences from local" in done.stdout
    assert "Differences from fedproto" in done.stdout
    assert "| one | fedproto | " in (out / "grid" / "table.md").read_text()
    # In a figure, from any label of any axis.
    top = 'kind = "figure"\nmeasures = ["own"]\nx = "setting"\nseries = "method"\n'
    top += 'against = ["third"]\n'
    text = file.read_text().replace("controls = false\ntune = []\n", top)
    (tmp_path / "figure.toml").write_text(text)
    done = fedrfq("reproduce", tmp_path / "figure.toml", "--out", tmp_path, "--device", "cpu")
    assert "Differences from third" in done.stdout
    (tmp_path / "figure.toml").write_text(text.replace('["third"]', '["fourth"]'))
    said = fedrfq("reproduce", tmp_path / "figure.toml", "--out", tmp_path, expect=2).stderr
    assert "against must be a list of labels" in said


def test_tables_say_what_intervals_contain(equal):
    _, out, done = equal
    for text in (done.stdout, (out / "grid" / "table.md").read_text()):
        assert "They contain neither the spread over clients nor that between reruns" in text
        assert "No experiment of this study was run more than once here." in text
    assert table(out)["reruns"]["experiments"] == 0


def test_runs_under_another_name_are_reruns_and_their_spread_is_recorded(equal, tmp_path):
    file, out, _ = equal
    shutil.copytree(out / "grid", tmp_path / "grid")
    # The same experiment under another name, with another accuracy in the end.
    run = next(iter(found(tmp_path).values()))
    again = shutil.copytree(run.path, tmp_path / "again" / run.path.name)
    text = (again / "experiment.toml").read_text().replace('name = "grid"', 'name = "again"')
    (again / "experiment.toml").write_text(text.replace("checkpoint = 2", "checkpoint = 1"))
    *earlier, last = (json.loads(line) for line in (again / "rounds.jsonl").open())
    last["accuracy_mean"] += 2.0
    (again / "rounds.jsonl").write_text("".join(to_json(r) + "\n" for r in (*earlier, last)))
    done = fedrfq("compare", file, "--out", tmp_path, "--device", "cpu")
    reruns = table(tmp_path)["reruns"]
    assert (reruns["experiments"], reruns["runs"]) == (1, 2)
    assert reruns["std"]["own"] == pytest.approx(statistics.stdev([0.0, 2.0]))
    assert "Experiments that were run more than once: 1, in 2 runs" in done.stdout
    assert "1.414 (own head)" in done.stdout
    assert RunDirectory.open(again).experiment().name == "again"
    # A damaged one counts for nothing, and does no harm.
    for damage in ("", '{"round": 1}\n'):
        (again / "rounds.jsonl").write_text(damage)
        fedrfq("compare", file, "--out", tmp_path, "--device", "cpu")
        assert table(tmp_path)["reruns"]["experiments"] == 0


def test_the_spread_between_reruns_is_pooled_by_hand():
    """Two runs 1 apart and three with variance 1: (0.5 · 1 + 1 · 2) / 3 degrees of freedom."""

    def runs(*values):
        return [{"own": value, "prototype": None, "all_classes": None} for value in values]

    found = Reruns.between([runs(1.0, 2.0), runs(1.0, 2.0, 3.0), runs(9.0)])
    assert (found.experiments, found.runs) == (2, 5)
    assert found.std["own"] == pytest.approx((2.5 / 3) ** 0.5)
    assert found.std["prototype"] is None
