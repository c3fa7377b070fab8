"""What a run with a public map tells people: what was exchanged, what it cost, what it gave."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedrfq import data
from fedrfq.models.public_maps import RandomMap
from fedrfq.report import run_page
from fedrfq.runs import public_summary, summary
from fedrfq.runs.run_directory import RunDirectory
from support.command import SMALL, fedrfq, only_run, records, sets
from support.reports import figures, rendered

PUBLIC = [
    "public.name=random",
    "public.first=8",
    "public.second=4",
    "public.bits=8",
    "method.name=local",
    "rounds=2",
    "checkpoint=2",
]


@pytest.fixture(scope="module")
def exchanged(_data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Run two rounds, in the first of which statistics are exchanged and nothing else."""
    out = tmp_path_factory.mktemp("exchanged")
    fedrfq("run", *sets([*SMALL, *PUBLIC]), "--out", out)
    return only_run(out)


def result(run: RunDirectory) -> dict[str, Any]:
    return json.loads((run.path / "result.json").read_text())


def test_the_table_says_what_one_client_exchanged(exchanged: RunDirectory) -> None:
    rows = dict(summary.rows(exchanged))
    first = records(exchanged.path)[0]
    clients = first["participants"]
    assert rows["public map"] == "random, 64 values at 8 bits; class means"
    assert rows["exchanged on it"] == (
        f"once, in round 1: {first['bytes_up'] / clients:,.0f} bytes up and "
        f"{first['bytes_down'] / clients:,.0f} bytes down for one client"
    )
    assert rows["uploaded per round"] == "nothing but the statistics on the public map"


def test_the_table_has_each_way_to_predict(exchanged: RunDirectory) -> None:
    rows = dict(summary.rows(exchanged))
    found = result(exchanged)
    assert rows["accuracy, all classes"].startswith(f"{found['accuracy_all']:.2f} %")
    for way, label in (("public", "public map alone"), ("head", "own head alone")):
        on_all, held, unheld = (
            f"{found[f'{way}_accuracy_{part}']:.2f} %" for part in ("all", "held", "unheld")
        )
        assert rows[f"… by {label}"] == f"{on_all} (held {held}, not held {unheld})"
    final, public, head = [f"{found[f'{way}ece']:.2f} %" for way in ("", "public_", "head_")]
    assert rows["calibration error (ECE)"] == (
        f"{final} ({public} by public map alone, {head} by own head alone)"
    )


def test_the_report_draws_the_calibration_error_of_each_way(exchanged: RunDirectory) -> None:
    found = result(exchanged)
    rows = figures(exchanged.path)["calibration"].rows
    assert {row["way"]: row["ece"] for row in rows} == {
        "final prediction": found["ece"],
        "public map alone": found["public_ece"],
        "own head alone": found["head_ece"],
    }


def test_the_result_has_all_bytes_and_the_map(exchanged: RunDirectory) -> None:
    found = result(exchanged)
    rounds = records(exchanged.path)
    assert found["bytes_up_total"] == sum(record["bytes_up"] for record in rounds) > 0
    assert found["bytes_down_total"] == sum(record["bytes_down"] for record in rounds) > 0
    assert found["public_map"] == RandomMap(first=8, second=4).fingerprint()


def test_the_report_says_who_vouches_for_the_map(exchanged: RunDirectory) -> None:
    text = html.unescape(rendered(exchanged.path))
    for fact in (RandomMap.source, RandomMap.licence, result(exchanged)["public_map"]):
        assert f"<dd>{fact}</dd>" in text
    sent = records(exchanged.path)[0]["bytes_up"]
    assert f"<strong>{run_page.length(sent)}</strong>" in text


def test_the_accuracy_figure_has_all_classes(exchanged: RunDirectory) -> None:
    rows = [row for row in figures(exchanged.path)["accuracy"].rows if "all" in row["series"]]
    assert [(row["round"], row["mean"]) for row in rows] == [(2, result(exchanged)["accuracy_all"])]


def test_the_plot_has_all_classes(exchanged: RunDirectory) -> None:
    axes = Figure().subplots()
    summary.draw(axes, exchanged.rounds())
    lines = {line.get_label(): line for line in axes.lines}
    curve = lines["all classes, final prediction"]
    assert list(curve.get_xdata()) == [2]
    assert list(curve.get_ydata()) == [result(exchanged)["accuracy_all"]]


def test_several_exchanges_beside_a_method_that_exchanges(tmp_path: Path) -> None:
    """What the method uploads is told from the statistics, although these are the last upload."""
    choice = [*SMALL, *PUBLIC, "public.every=2", "rounds=3", "checkpoint=3", "method.name=fedproto"]
    fedrfq("run", *sets(choice), "--out", tmp_path)
    run = only_run(tmp_path)
    rows = dict(summary.rows(run))
    second = records(run.path)[1]
    assert rows["exchanged on it"].startswith("in 2 rounds, each time: ")
    assert rows["uploaded per round"].startswith(f"{second['parameters_up']:,} values")


def test_statistics_are_told_from_the_models_that_travel_beside_them(
    tmp_path: Path, exchanged: RunDirectory
) -> None:
    choice = [*SMALL, *PUBLIC, "method.name=fedavg"]
    fedrfq("run", *sets(choice), "--out", tmp_path)
    run = only_run(tmp_path)
    first, second = records(run.path)
    alone = records(exchanged.path)[0]
    for way in ("up", "down"):
        # Local sends nothing but statistics, and its clients hold the same classes.
        assert first[f"public_bytes_{way}"] == alone[f"bytes_{way}"]
        # The model weighs as much in the round without an exchange.
        assert first[f"bytes_{way}"] == first[f"public_bytes_{way}"] + second[f"bytes_{way}"]
        assert second[f"public_bytes_{way}"] is None
    said = dict(summary.rows(run))["exchanged on it"]
    assert said == dict(summary.rows(exchanged))["exchanged on it"]
    tile = f"<strong>{run_page.length(first['public_bytes_up'])}</strong>"
    assert tile in html.unescape(rendered(run.path))


def test_a_threshold_says_how_much_is_answered_and_how_well(tmp_path: Path) -> None:
    fedrfq("run", *sets([*SMALL, *PUBLIC, "public.threshold=0.6"]), "--out", tmp_path)
    run = only_run(tmp_path)
    found = result(run)
    assert 0 < found["answered"] < 100
    # What is left out is wrong more often than the rest.
    assert found["accuracy_answered"] > found["accuracy_all"]
    said = dict(summary.rows(run))["… at least as sure as the threshold"]
    share = f"{found['answered']:.2f} % of the samples"
    assert said == f"{share}, {found['accuracy_answered']:.2f} % of them rightly"


def test_records_from_before_statistics_were_counted_apart(exchanged: RunDirectory) -> None:
    record = replace(exchanged.rounds()[0], public_bytes_up=None, public_bytes_down=None)
    assert public_summary.statistics_bytes(record) == (record.bytes_up, record.bytes_down)


@pytest.mark.parametrize("changes", [[], ["public.moments=full", "public.bits=16"]])
def test_a_dry_run_says_what_the_map_will_cost(tmp_path: Path, changes: list[str]) -> None:
    choice = sets([*SMALL, *PUBLIC, *changes])
    dry = fedrfq("run", *choice, "--out", tmp_path / "none", "--dry-run").stdout
    fedrfq("run", *choice, "--out", tmp_path)
    rows = dict(summary.rows(only_run(tmp_path)))
    for label in ("public map", "exchanged on it"):
        assert f"{label}: {rows[label]}" in dry


def test_without_a_map_nothing_is_said_of_one(whole: Path) -> None:
    run = RunDirectory.open(whole)
    assert not any("public" in label for label, _ in summary.rows(run))
    assert result(run)["public_map"] is None
    assert "who vouches" not in rendered(whole)


def test_a_map_that_cannot_see_the_images_leaves_no_directory(tmp_path: Path) -> None:
    digits = data.load("mnist5k")
    small = tmp_path / "small.npz"
    np.savez(
        small,
        train_x=digits.train_x[:, 0, ::3, ::3],
        train_y=digits.train_y,
        test_x=digits.test_x[:, 0, ::3, ::3],
        test_y=digits.test_y,
    )
    choice = [*SMALL, *PUBLIC, f"data.name={small}", "model.name=mlp"]
    done = fedrfq("run", *sets(choice), "--out", tmp_path / "runs", expect=2)
    assert "scale them up" in done.stderr
    assert not (tmp_path / "runs").exists()
