"""Attacks against detectors: losses over the same clients, shares won back, and who was caught."""

import csv
import json

import pytest

from fedrfq.learning.round_loop import attackers
from fedrfq.studies.intervals import Spread
from fedrfq.studies.robustness import ACCURACIES, RobustnessPlan, shares, won_back
from fedrfq.studies.study import Study
from support.command import clients, fedrfq
from support.grids import grid_file, refused, run_of, table

TOP = """seeds = [0, 1]
against = ["none"]
attackers = [1, 2]
attacks = ["none", "sign-flip"]
[detectors.none]
[detectors.two]
name = "bft"
psi = 2
[[claims]]
says = "the detector helps"
measure = "own"
better = {detector = "two"}
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tried")
    file = grid_file(folder, TOP, rounds=6)
    done = fedrfq("robustness", file, "--out", folder / "out", "--device", "cpu", "--json")
    return RobustnessPlan.of(Study.load(file, kind="robustness")), folder / "out", done


def cells(out):
    return {
        (cell["attack"], cell["detector"], cell["attackers"]): cell for cell in table(out)["cells"]
    }


def over(run, who, column="accuracy"):
    """Return the mean of some clients' accuracies after the last round."""
    last = clients(run.path)[-5:]
    return sum(float(last[k][column]) for k in who) / len(who)


def honest_of(study, number, seed):
    bad = attackers(study.axes.experiments[("sign-flip", "two", str(number)), seed])
    assert len(bad) == number
    return [k for k in range(5) if k not in bad]


def test_all_run_in_one_stack_and_no_attack_runs_once(tried):
    study, out, done = tried
    assert "12 runs, 0 of them done; 12 to train in 1 stack" in done.stderr
    assert len(list((out / "grid").glob("*/result.json"))) == 12
    assert (
        study.axes.experiments[("none", "two", str(1)), 0]
        == study.axes.experiments[("none", "two", str(2)), 0]
    )


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("measure", "column"),
    [
        ("own", "accuracy"),
        ("prototype", "prototype_accuracy"),
        ("all_classes", "accuracy_all"),
    ],
)
def test_losses_are_from_the_clean_run_over_the_same_clients(tried, number, measure, column):
    study, out, _ = tried
    losses = {}
    for attack in ("none", "sign-flip"):
        for detector in ("none", "two"):
            runs = [
                run_of(out, study.axes.experiments[(attack, detector, str(number)), seed])
                for seed in (0, 1)
            ]
            clean = [
                run_of(out, study.axes.experiments[("none", "none", str(number)), seed])
                for seed in (0, 1)
            ]
            who = [honest_of(study, number, seed) for seed in (0, 1)]
            accuracies = [over(run, k, column) for run, k in zip(runs, who, strict=True)]
            before = [over(run, k, column) for run, k in zip(clean, who, strict=True)]
            losses[attack, detector] = (sum(before) - sum(accuracies)) / 2
            cell = cells(out)[attack, detector, number]
            assert cell[measure]["mean"] == pytest.approx(sum(accuracies) / 2)
            assert cell[f"{measure}_loss"]["mean"] == pytest.approx(losses[attack, detector])
    assert losses["none", "none"] == 0
    lost = losses["sign-flip", "none"]
    left = losses["sign-flip", "two"]
    expected = None
    if lost >= 0.5:
        expected = pytest.approx((lost - left) / lost)
    assert cells(out)["sign-flip", "two", number][f"{measure}_won_back"] == expected


@pytest.mark.parametrize("number", [1, 2])
def test_who_was_caught(tried, number):
    study, out, _ = tried
    rows = []
    for seed in (0, 1):
        rows += clients(
            run_of(out, study.axes.experiments[("sign-flip", "two", str(number)), seed]).path
        )
    bad = [row for row in rows if row["malicious"] == "1"]
    dropped = [row for row in rows if row["verdict"] == "filtered"]
    caught = [row for row in bad if row["verdict"] == "filtered"]
    late = [row for row in bad if int(row["round"]) >= 5]
    cell = cells(out)["sign-flip", "two", number]
    assert cell["precision"] == pytest.approx(len(caught) / len(dropped))
    assert cell["recall"] == pytest.approx(len(caught) / len(bad))
    assert cell["recall_late"] == pytest.approx(
        sum(row["verdict"] == "filtered" for row in late) / len(late)
    )
    assert cell["honest_dropped"] == pytest.approx(
        (len(dropped) - len(caught)) / (len(rows) - len(bad))
    )
    quiet = cells(out)["none", "two", number]
    assert quiet["recall"] is None
    assert quiet["precision"] == 0
    assert quiet["honest_dropped"] == pytest.approx(2 / 5)


def test_what_is_printed_and_written(tried):
    _, out, done = tried
    whole = json.loads(done.stdout.splitlines()[-1])
    assert whole == table(out)
    assert len(whole["cells"]) == 8
    assert len(whole["runs"]) == 16
    places = ["none, 1", "none, 2", "sign-flip, 1", "sign-flip, 2", "all together"]
    assert [claim["where"] for claim in whole["claims"]] == places
    claim = whole["claims"][3]["differences"]["none"]["mean"]
    assert f"| sign-flip, 2 | two | {claim:+.2f} ±" in (out / "grid" / "table.md").read_text()
    ends = [cells(out)["sign-flip", detector, 2]["own"]["mean"] for detector in ("two", "none")]
    assert claim == pytest.approx(ends[0] - ends[1])
    rows = list(csv.DictReader((out / "grid" / "table.csv").read_text().splitlines()))
    assert [float(row["own_loss_mean"]) for row in rows] == [
        cell["own_loss"]["mean"] for cell in whole["cells"]
    ]
    cell = cells(out)["sign-flip", "two", 2]
    for text in (done.stdout, (out / "grid" / "table.md").read_text()):
        assert f"{cell['own']['mean']:.2f} ± {cell['own']['std']:.2f}" in text
        assert f"{cell['precision']:.2f} / {cell['recall']:.2f} / {cell['recall_late']:.2f}" in text
    pictures = sorted((out / "grid").glob("*.png"))
    assert [path.name for path in pictures] == ["attackers-1.png", "attackers-2.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_the_titles_of_heat_maps_fit_beside_each_other(tried):
    """Two panels stand side by side, each as wide as its few columns."""
    study, out, _ = tried
    found = [cell for cell in table(out)["cells"] if cell["attackers"] == 1]
    only_own = [
        {**cell, **dict.fromkeys(ACCURACIES), "own": Spread(**cell["own"])} for cell in found
    ]
    titles = [panel.title for panel in study.panels(only_own)]
    assert titles == ["own head, %", "precision", "recall"]


def test_won_back_by_hand():
    def loss(mean):
        return Spread(2, mean, 1.0, 1.0)

    assert won_back(loss(2.0), loss(8.0)) == 0.75
    assert won_back(loss(8.0), loss(8.0)) == 0
    assert won_back(loss(-2.0), loss(8.0)) == 1.25
    assert won_back(loss(0.0), loss(0.4)) is None
    assert won_back(loss(1.0), None) is None


def test_shares_by_hand():
    names = ("dropped", "dropped_attackers", "attackers")
    names += ("late_dropped_attackers", "late_attackers", "honest")
    runs = [
        dict(zip(names, counts, strict=True))
        for counts in ((4, 2, 6, 1, 2, 20), (6, 3, 4, 2, 2, 20))
    ]
    assert shares(runs) == {
        "precision": 0.5,
        "recall": 0.5,
        "recall_late": 0.75,
        "honest_dropped": 5 / 40,
    }
    assert set(shares([]).values()) == {None}


def test_without_none_the_clean_run_is_still_there(tmp_path):
    top = 'seeds = [0]\nattackers = [1]\nattacks = ["noise"]\ndetectors = ["median"]'
    file = grid_file(tmp_path, top, rounds=1)
    done = fedrfq("robustness", file, "--out", tmp_path / "out", "--device", "cpu")
    assert "2 runs" in done.stderr
    (cell,) = table(tmp_path / "out")["cells"]
    assert cell["own_loss"] is not None
    assert cell["own_won_back"] is None


def test_attacks_on_a_public_map_are_measured_on_all_classes(tmp_path):
    top = 'seeds = [0]\nattackers = [2]\nattacks = ["sign-flip"]\ndetectors = ["none"]'
    public = 'method = {name = "local"}\npublic = {name = "random", first = 8, second = 4}'
    file = grid_file(tmp_path, top, more=public, rounds=1)
    # The map needs larger images than those of the tiny dataset.
    text = file.read_text().replace(str(tmp_path / "tiny.npz"), "mnist5k")
    file.write_text(text)
    fedrfq("robustness", file, "--out", tmp_path / "out", "--device", "cpu")
    study = RobustnessPlan.of(Study.load(file, kind="robustness"))
    (experiment,) = study.axes.experiments.values()
    bad = attackers(experiment)
    who = [k for k in range(5) if k not in bad]
    attacked = over(run_of(tmp_path / "out", experiment), who, "public_accuracy_all")
    clean = over(run_of(tmp_path / "out", study.clean[0]), who, "public_accuracy_all")
    assert attacked < clean
    (cell,) = table(tmp_path / "out")["cells"]
    assert cell["public"]["mean"] == pytest.approx(attacked)
    assert cell["public_loss"]["mean"] == pytest.approx(clean - attacked)
    # A method without prototypes has no tables of them.
    tables = (tmp_path / "out" / "grid" / "table.md").read_text()
    assert "on all classes by the public map alone" in tables
    assert "nearest prototype" not in tables


GOOD = 'seeds = [0]\nattackers = [1]\nattacks = ["none"]\ndetectors = ["none"]'
BAD = {
    GOOD.replace("attackers", "atackers"): "did you mean attackers?",
    GOOD.replace("[1]", "[]"): "attackers must be a list",
    GOOD.replace("[1]", "[0]"): "attackers must be a list",
    GOOD.replace("[1]", "[5]"): "leave at least one of them honest",
    GOOD.replace('attacks = ["none"]', 'attacks = ["nois"]'): "did you mean noise?",
    GOOD.replace('detectors = ["none"]', "detectors = []"): "axes.detector must be sections",
    GOOD.replace(
        'detectors = ["none"]', "[detectors.mine]\npsi = 3"
    ): "axes.detector.mine: detector.name is missing",
    GOOD.replace('detectors = ["none"]', "[detectors.bft]\npsy = 3"): "did you mean psi?",
    GOOD.replace('attacks = ["none"]', "")
    + "\n[attacks.noise]\nclients = 3": "clients cannot be set here; set axes.attackers",
}


@pytest.mark.parametrize(("top", "says"), BAD.items())
def test_bad_files(tmp_path, top, says):
    assert says in refused("robustness", grid_file(tmp_path / "bad", top), tmp_path / "out")


def test_attack_in_the_experiment_is_refused(tmp_path):
    file = grid_file(tmp_path / "bad", GOOD, more='attack = {name = "noise"}')
    assert "experiment.attack cannot be set here; make the attacks" in refused(
        "robustness", file, tmp_path / "out"
    )
