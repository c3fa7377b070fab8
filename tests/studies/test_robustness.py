"""Attacks against detectors: losses over the same clients, shares won back, and who was caught."""

import csv
import json

import pytest

from fedrfq.learning.round_loop import attackers
from fedrfq.studies.intervals import Spread
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.robustness import SHARES, RobustnessPlan, clean, won_back
from fedrfq.studies.robustness_tables import ACCURACIES, panels, worst_attacks
from fedrfq.studies.study import Study
from support.command import clients, fedrfq
from support.grids import grid_file, refused, run_of, table

TOP = """seeds = [0, 1]
against = ["none"]
axes.attackers = [1, 2]
axes.attack = ["none", "sign-flip"]
[axes.detector.none]
[axes.detector.two]
detector = {name = "bft", psi = 2}
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
    titles = [panel.title for panel in panels(only_own, study.axes.labels)]
    assert titles == ["own head, %", "precision", "recall"]


def test_won_back_by_hand():
    def loss(mean):
        return Spread(2, mean, 1.0, 1.0)

    assert won_back(loss(2.0), loss(8.0)) == 0.75
    assert won_back(loss(8.0), loss(8.0)) == 0
    assert won_back(loss(-2.0), loss(8.0)) == 1.25
    assert won_back(loss(0.0), loss(0.4)) is None
    assert won_back(loss(1.0), None) is None


def test_shares_by_hand(tried):
    study, _, _ = tried
    names = ("dropped", "dropped_attackers", "dropped_honest", "attackers")
    names += ("late_dropped_attackers", "late_attackers", "honest")
    labels = ("sign-flip", "two", "1")
    figures = {
        (labels, seed): dict(zip([f"uploads_{name}" for name in names], counts, strict=True))
        for seed, counts in enumerate(((4, 2, 2, 6, 1, 2, 20), (6, 3, 3, 4, 2, 2, 20)))
    }
    measured = MeasuredRuns(study.axes, figures, {}, {})
    shares = {name: measured.share(*counts, labels) for name, counts in SHARES.items()}
    expected = {"precision": 0.5, "recall": 0.5, "recall_late": 0.75, "honest_dropped": 5 / 40}
    assert shares == expected
    nothing = MeasuredRuns(study.axes, {}, {}, {})
    assert {nothing.share(*counts, labels) for counts in SHARES.values()} == {None}


def test_without_none_the_clean_run_is_still_there(tmp_path):
    top = 'seeds = [0]\naxes.attackers = [1]\naxes.attack = ["noise"]\naxes.detector = ["median"]'
    file = grid_file(tmp_path, top, rounds=1)
    done = fedrfq("robustness", file, "--out", tmp_path / "out", "--device", "cpu")
    assert "2 runs" in done.stderr
    (cell,) = table(tmp_path / "out")["cells"]
    assert cell["own_loss"] is not None
    assert cell["own_won_back"] is None


def test_attacks_on_a_public_map_are_measured_on_all_classes(tmp_path):
    top = 'seeds = [0]\naxes.attackers = [2]\naxes.attack = ["sign-flip"]\naxes.detector = ["none"]'
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
    before = over(run_of(tmp_path / "out", clean(experiment)), who, "public_accuracy_all")
    assert attacked < before
    (cell,) = table(tmp_path / "out")["cells"]
    assert cell["public"]["mean"] == pytest.approx(attacked)
    assert cell["public_loss"]["mean"] == pytest.approx(before - attacked)
    # A method without prototypes has no tables of them.
    tables = (tmp_path / "out" / "grid" / "table.md").read_text()
    assert "on all classes by the public map alone" in tables
    assert "nearest prototype" not in tables


GOOD = 'seeds = [0]\naxes.attackers = [1]\naxes.attack = ["none"]\naxes.detector = ["none"]'
BAD = {
    GOOD.replace("attackers", "atackers"): "axes.attackers is missing; the axes are atackers",
    GOOD.replace("[1]", "[]"): "attackers must be a list",
    GOOD.replace("[1]", "[0]"): "attackers must be a list",
    GOOD.replace("[1]", "[5]"): "leave at least one of them honest",
    GOOD.replace('axes.attack = ["none"]', 'axes.attack = ["nois"]'): "did you mean noise?",
    GOOD.replace(
        'axes.detector = ["none"]', "axes.detector = []"
    ): "axes.detector must be sections",
    GOOD.replace(
        'axes.detector = ["none"]', "[axes.detector.mine]\ndetector = {psi = 3}"
    ): "axes.detector.mine: detector.name is missing",
    GOOD.replace(
        'axes.detector = ["none"]', "[axes.detector.bft]\ndetector = {psy = 3}"
    ): "did you mean psi?",
    GOOD.replace('axes.attack = ["none"]', "")
    + "\n[axes.attack.noise]\nattack = {clients = 3}": "set here; set axes.attackers",
}


@pytest.mark.parametrize(("top", "says"), BAD.items())
def test_bad_files(tmp_path, top, says):
    assert says in refused("robustness", grid_file(tmp_path / "bad", top), tmp_path / "out")


def test_attack_in_the_experiment_is_refused(tmp_path):
    file = grid_file(tmp_path / "bad", GOOD, more='attack = {name = "noise"}')
    assert "experiment.attack cannot be set here; make the attacks" in refused(
        "robustness", file, tmp_path / "out"
    )


SETTINGS = """seeds = [0, 1]
axes.attackers = [2]
axes.attack = ["none", "sign-flip"]
axes.detector = ["none", "median"]
axes.method = ["fedproto", "fedrfq"]
[[where]]
method = "fedrfq"
detector = "median"
change = {detector = {psi = 2}}
[axes.setting.few]
[axes.setting.many]
partition = {ways = 3}
"""


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settled")
    file = grid_file(folder, SETTINGS, rounds=2)
    fedrfq("robustness", file, "--out", folder / "out", "--device", "cpu")
    return RobustnessPlan.of(Study.load(file, kind="robustness")), folder / "out"


def test_other_axes_make_up_settings_each_with_its_clean_run(settled):
    study, out = settled
    whole = table(out)
    assert len(whole["cells"]) == 2 * 2 * 2 * 2
    # The clean run is that without attack and detector.
    assert len(list((out / "grid").glob("*/result.json"))) == 16 * 2
    for cell in whole["cells"]:
        labels = (cell["method"], cell["setting"], cell["attack"], cell["detector"], "2")
        losses = []
        for seed in (0, 1):
            experiment = study.axes.experiments[labels, seed]
            before = clean(experiment)
            assert (before.method, before.partition) == (experiment.method, experiment.partition)
            bad = attackers(study.axes.experiments[(*labels[:2], "sign-flip", "none", "2"), seed])
            who = [k for k in range(5) if k not in bad]
            losses.append(over(run_of(out, before), who) - over(run_of(out, experiment), who))
        assert cell["own_loss"]["mean"] == pytest.approx(sum(losses) / 2)
    psi = {
        labels[0]: experiment.detector.psi
        for (labels, _), experiment in study.axes.experiments.items()
        if labels[3] == "median"
    }
    assert psi["fedrfq"] == 2 != psi["fedproto"]


def test_tables_and_pictures_of_settings_are_told_apart(settled):
    _, out = settled
    text = (out / "grid" / "table.md").read_text()
    for place in ("fedproto, few", "fedproto, many", "fedrfq, few", "fedrfq, many"):
        assert f"## {place}: 2 attackers: detectors over all attacks" in text
    pictures = sorted(path.name for path in (out / "grid").glob("*.png"))
    assert pictures[0] == "attackers-2-fedproto-few.png"
    assert len(pictures) == 4


def test_the_worst_attack_on_each_detector_is_told_in_every_setting(settled):
    study, out = settled
    whole = table(out)
    rows = {(r["method"], r["setting"], r["detector"]): r for r in whole["worst_attacks"]}
    assert len(rows) == 8
    lost = {
        (c["method"], c["setting"], c["detector"], c["attack"]): c["own_loss"]["mean"]
        for c in whole["cells"]
    }
    for place, row in rows.items():
        assert row["attackers"] == 2
        assert row["own"]["peace"] == lost[*place, "none"]
        assert (row["own"]["worst"], row["own"]["worst_loss"]) == (
            "sign-flip",
            lost[*place, "sign-flip"],
        )
    row = rows["fedrfq", "few", "median"]
    line = f"| fedrfq | few | 2 | median | own head | {row['own']['peace']:.2f} | sign-flip | "
    assert line in (out / "grid" / "table.md").read_text()
    assert study.axes.labels["detector"] == ("none", "median")


def test_the_worst_attack_by_hand():
    def cell(detector, attack, loss, weight, out):
        spread = Spread(1, loss, None, None)
        return {
            **{"detector": detector, "attack": attack, "attackers": 4},
            **{f"{name}_loss": None for name in ACCURACIES},
            **{"own_loss": spread, "honest_weight_lost": weight, "longest_shut_out": out},
        }

    cells = [
        *(cell("none", *row) for row in (("none", 0, 0, 0), ("swap", 8, 0, 0), ("ipm", 10, 0, 0))),
        *(
            cell("mine", *row)
            for row in (("none", 1, 2, 3), ("swap", 6, 5, 1), ("ipm", 4, None, 0))
        ),
        cell("none", "mimic", 1.0, 0, 0),
        cell("mine", "mimic", 3.0, 0, 0),
    ]
    _, mine = worst_attacks(cells, ("attack", "detector", "attackers"), "none", "none")
    assert (mine["detector"], mine["attackers"]) == ("mine", 4)
    assert (mine["honest_weight_lost"], mine["longest_shut_out"]) == (5, 3)
    # Mimic costs no more than a point undefended, so what is won back of it is mostly noise.
    assert mine["own"] == {
        "peace": 1,
        "worst": "swap",
        "worst_loss": 6,
        "least_won_back": 0.25,
        "least_won_back_of": "swap",
    }
    assert set(mine["prototype"].values()) == {None}
