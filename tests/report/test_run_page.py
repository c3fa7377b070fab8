"""The report of one run: it shows what the run directory holds, whatever state that is in."""

import csv
import html
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrfq.errors import UserError
from fedrfq.experiment import load
from fedrfq.files import tensors
from fedrfq.learning.all_classes import COMMON_COLUMNS
from fedrfq.report import client_figures, projection, run_page, vega
from fedrfq.report.clients_csv import Clients
from fedrfq.report.figure import Figure
from fedrfq.report.projection import principal
from fedrfq.report.run_data import RunData
from fedrfq.runs import summary
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.snapshot import Share
from support.command import CPU, clients, damaged, fedrfq, records, small_session
from support.reports import ATTACK, COMMITTEE, figures, hostile, ran, rendered


@pytest.fixture(scope="module")
def attacked(_data_folder, tmp_path_factory):
    """Run three rounds with two attackers, a detector, and a committee with a lying server."""
    return ran(tmp_path_factory.mktemp("attacked"), *COMMITTEE, *ATTACK)


def test_it_says_what_was_run_and_how_to_run_it_again(whole):
    text = html.unescape(rendered(whole))
    run = RunDirectory.open(whole)
    for label, value in [*summary.settings(run), *summary.rows(run)]:
        assert f"<dt>{label}</dt><dd>{value}</dd>" in text
    known = run.environment()
    for part in (
        known["data"]["sha256"],
        known["device"],
        known["versions"]["torch"],
        run.experiment().hash(),
    ):
        assert part in text
    assert known["revision"].rstrip("+") in text
    assert f"fedrfq run {whole}/experiment.toml --device cpu" in text
    assert (whole / "experiment.toml").read_text() in text


def test_what_was_run_are_settings_and_no_results(attacked):
    cards = {section.title: section.body for section in run_page.page(attacked).sections}
    assert "<dt>attack</dt><dd>noise by 2 clients from round" in cards["What was run"]
    assert "<dt>detector</dt><dd>adaptive</dd>" in cards["What was run"]
    assert "accuracy" not in cards["What was run"]
    alone = load(sets=["attack.name=noise", "attack.clients=1"])
    assert summary._attack(alone) == [("attack", "noise by 1 client from round 1 on")]
    assert "accuracy, own head" in cards["Results"]
    assert "<dt>attack</dt>" not in cards["Results"]


def test_there_is_a_figure_for_everything_that_happened(whole, attacked, tmp_path):
    always = ["accuracy", "calibration", "clients", "known", "partition", "prototypes"]
    always += ["recall", "traffic", "trail"]
    assert sorted(figures(whole)) == always
    assert sorted(figures(attacked)) == sorted([*always, "filtered", "committee", "agreeing"])
    assert sorted(figures(ran(tmp_path, "method.name=local"))) == [
        "accuracy",
        "calibration",
        "clients",
        "known",
        "partition",
        "recall",
    ]


def test_accuracy_is_that_of_the_records_with_a_band_of_one_deviation(whole):
    rows = figures(whole)["accuracy"].rows
    for name, field in (("own head", "accuracy"), ("nearest prototype", "prototype_accuracy")):
        own = [row for row in rows if row["series"] == name]
        assert [row["mean"] for row in own] == [
            record[f"{field}_mean"] for record in records(whole)
        ]
        for row, record in zip(own, records(whole), strict=True):
            mean = record[f"{field}_mean"]
            std = record[f"{field}_std"]
            assert (row["low"], row["high"]) == (max(0, mean - std), min(100, mean + std))


def test_where_some_attack_the_honest_clients_have_curves_of_their_own(whole, attacked):
    own = [
        row["mean"]
        for row in figures(attacked)["accuracy"].rows
        if row["series"] == "own head (honest only)"
    ]
    assert own == [record["honest_accuracy_mean"] for record in records(attacked)]
    assert not any("honest" in row["series"] for row in figures(whole)["accuracy"].rows)


def test_clients_are_as_after_the_last_round(attacked):
    rows = [row for row in figures(attacked)["clients"].rows if row["series"] == "own head"]
    last = [row for row in clients(attacked) if row["round"] == "3"]
    assert [row["accuracy"] for row in rows] == [float(row["accuracy"]) for row in last]
    assert [row["role"] == "malicious" for row in rows] == [row["malicious"] == "1" for row in last]


def test_clients_on_all_classes_are_as_tested_last(whole, tmp_path):
    """A run that has gone on since, up to a round without that test, shows the same."""
    rows = figures(whole)["known"].rows
    last = [row for row in clients(whole) if row["round"] == "8"]
    for name, column in (
        ("classes it holds", "accuracy_held"),
        ("classes it does not hold", "accuracy_unheld"),
    ):
        found = [row["accuracy"] for row in rows if row["series"] == name]
        assert found == [float(row[column]) for row in last if row[column]]
    assert {row["ece"] for row in rows} == {float(row["ece"]) for row in last}
    recall = [row["recall"] for row in figures(whole)["recall"].rows]
    assert recall == records(whole)[-1]["recall"]
    unfinished = tmp_path / "unfinished"
    shutil.copytree(whole, unfinished)
    for file, lines in (("rounds.jsonl", 7), ("clients.csv", 1 + 7 * 6)):
        kept = (unfinished / file).read_text().splitlines(keepends=True)[:lines]
        (unfinished / file).write_text("".join(kept))
    tested = records(whole)[5]
    assert tested["recall"] == [row["recall"] for row in figures(unfinished)["recall"].rows]
    assert "after round 6" in figures(unfinished)["known"].caption
    assert f"{tested['accuracy_all']:.2f} %" in rendered(unfinished)


def test_names_of_classes_are_those_of_the_data(whole, tmp_path):
    known = json.loads((whole / "environment.json").read_text())
    known["data"]["classes"] = ["zero", "one\n\u2028"]
    copy = damaged(whole, tmp_path, "environment.json", json.dumps(known))
    names = {row["label"]: row["class"] for row in figures(copy)["partition"].rows}
    expected = {0: "zero", 1: "one··", 2: "2"}
    # Classes that no client holds are not on the map.
    assert {label: names.get(label, name) for label, name in expected.items()} == expected
    assert len(names) > 2


def test_the_map_has_every_clients_samples_and_is_dealt_anew_where_it_was_not_recorded(
    whole, tmp_path
):
    rows = figures(whole)["partition"].rows
    for client in clients(whole)[-6:]:
        own = [row for row in rows if row["client"] == int(client["client"])]
        assert (len(own), sum(row["train"] for row in own)) == (
            int(client["classes"]),
            int(client["samples"]),
        )
        assert all(row["test"] == 5 for row in own)
    copy = damaged(whole, tmp_path, "environment.json", (whole / "environment.json").read_text())
    (copy / "partition.csv").unlink()
    assert figures(copy)["partition"].rows == rows


def test_no_map_without_the_very_data(whole, tmp_path):
    text = (whole / "environment.json").read_text()
    copy = damaged(
        whole, tmp_path, "environment.json", re.sub(r'"sha256": "\w+"', '"sha256": "0"', text)
    )
    (copy / "partition.csv").unlink()
    page = run_page.page(copy)
    assert "partition" not in [figure.name for figure in page.figures()]
    assert "data has changed" in page.head


def test_prototypes_are_those_that_were_sent_and_came_back(attacked):
    rows = figures(attacked)["prototypes"].rows
    last = [row for row in clients(attacked) if row["round"] == "3"]
    for client in last:
        own = [row for row in rows if row["client"] == int(client["client"])]
        assert len(own) == int(client["classes"])
        assert {row["kind"] for row in own} == {
            "malicious client" if client["malicious"] == "1" else "client"
        }
    globals_ = RunDirectory.open(attacked).last(CPU).globals_[0]
    assert [row["class"] for row in rows if row["kind"] == "global"] == [
        str(j) for j in np.flatnonzero(globals_.present_J)
    ]


def test_principal_components_keep_distances_in_a_plane_and_say_what_they_hold():
    points = np.array([[0.0, 0.0, 5.0], [3.0, 0.0, 5.0], [0.0, 4.0, 5.0]])
    flat, share = principal(points)
    assert np.linalg.norm(flat[1] - flat[2]) == pytest.approx(5)
    assert np.linalg.norm(flat[0] - flat[1]) == pytest.approx(3)
    assert share.sum() == pytest.approx(1)
    assert share[0] > share[1]
    alone, nothing = principal(np.array([[1.0, 2.0]]))
    assert (alone == 0).all()
    assert (nothing == 0).all()


def test_filtered_are_those_of_the_records_and_attackers_that_got_through(attacked):
    figure = figures(attacked)["filtered"]
    found = records(attacked)
    dropped = [
        (row["round"], row["client"]) for row in figure.rows if row["series"].endswith("dropped")
    ]
    assert sorted(dropped) == [
        (record["round"], client) for record in found for client in record["filtered"]
    ]
    right = [row for row in figure.rows if row["series"] == "malicious, dropped"]
    missed = [row for row in figure.rows if row["series"] == "malicious, kept"]
    assert len(right) == sum(record["attackers_filtered"] for record in found) > 0
    assert len(right) + len(missed) == sum(record["attackers"] for record in found)


def test_less_weight_is_drawn_with_what_is_left_and_why(attacked, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(attacked, copy)
    with (copy / "clients.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for malicious, weight in (("0", "40.0"), ("1", "60.0")):
        row = next(row for row in rows if row["malicious"] == malicious)
        row |= {"verdict": "kept", "weight": weight, "reason": "class 1: far (weight 40 %)"}
    with (copy / "clients.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    figure = figures(copy)["filtered"]
    drawn = {row["series"]: row for row in figure.rows if "less weight" in row["series"]}
    assert drawn["honest, less weight"]["weight"] == 40
    assert drawn["malicious, less weight"]["weight"] == 60
    assert drawn["honest, less weight"]["reason"] == "class 1: far (weight 40 %)"
    assert "1 × honest, less weight" in figure.caption
    assert {tip["field"] for tip in figure.spec["encoding"]["tooltip"]} >= {"weight", "reason"}


def test_the_committees_rounds_are_those_of_the_records(attacked):
    drawn = figures(attacked)
    for row, record in zip(drawn["committee"].rows, records(attacked), strict=True):
        assert (row["leader"], row["view"], row["evidence"]) == (
            record["leader"],
            record["view"],
            record["evidence"],
        )
        assert (row["messages"], row["bytes"]) == (
            record["committee_messages"],
            record["committee_bytes"],
        )
    proofs = sum(record["evidence"] for record in records(attacked))
    assert f"{proofs} proofs" in drawn["agreeing"].caption


def test_traffic_adds_up(attacked):
    rows = figures(attacked)["traffic"].rows
    found = records(attacked)
    for name, field in (
        ("up from clients", "bytes_up"),
        ("down to clients", "bytes_down"),
        ("committee", "committee_bytes"),
    ):
        assert [row["total"] for row in rows if row["series"] == name][-1] == sum(
            record[field] for record in found
        )


def test_a_figures_csv_is_its_rows():
    rows = [{"x": 1, "name": 'say "no", twice'}, {"x": None, "name": "b"}]
    figure = Figure("a", "A", "", rows, {})
    assert list(csv.DictReader(io.StringIO(figure.csv()))) == [
        {"x": "1", "name": 'say "no", twice'},
        {"x": "", "name": "b"},
    ]


def test_a_page_draws_a_bounded_number_of_rows_the_last_round_among_them():
    rows = [{"round": number, "y": 1 / 3} for number in range(1, 20_001)]
    drawn = Figure("a", "A", "", rows, {}).drawn()
    assert 3000 < len(drawn) <= 6000
    assert drawn[-1] == {"round": 20_000, "y": 0.333333}
    assert len(Figure("a", "A", "", [{"x": number} for number in range(9000)], {}).drawn()) == 6000


def test_an_unfinished_run_is_shown_as_far_as_it_is(tmp_path):
    session = small_session(tmp_path)
    path = session.runs[0].path
    page = run_page.page(path)
    assert [figure.name for figure in page.figures()] == ["partition"]
    assert "0 of 8 rounds" in page.head
    assert "neither its last prototypes nor a checkpoint" in page.head
    for _, _outcomes in zip(range(3), session.advance(), strict=False):
        pass
    found = figures(path)
    # Three rounds of both ways to predict, and one test on all classes.
    assert len(found["accuracy"].rows) == 2 * 3 + 1
    assert {row["round"] for row in found["trail"].rows} == {1, 2, 3}
    # A run from before there were trails shows the checkpoint's prototypes.
    (path / "trail.jsonl").unlink()
    found = figures(path)
    assert {row["kind"] for row in found["prototypes"].rows} == {"global"}
    assert "was not recorded" in found["prototypes"].caption
    with (path / "clients.csv").open("a") as file:
        file.write("4,0,1")  # torn
    assert len(figures(path)["clients"].rows) == 2 * 6


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(10),
        torch.full((10, 24), torch.nan),
        torch.zeros(3, 24, dtype=torch.int64),
        torch.zeros(10, 24).bfloat16(),
    ],
)
def test_a_checkpoint_with_other_globals_gives_no_picture(whole, tmp_path, values):
    copy = damaged(whole, tmp_path, "prototypes.safetensors", "")
    (copy / "prototypes.safetensors").unlink()
    (copy / "trail.jsonl").unlink()
    (path,) = RunDirectory.open(copy).checkpoints().values()
    named, metadata = tensors.load(path)
    tensors.save(path, {**named, "globals/values": values}, metadata)
    page = run_page.page(copy)
    assert "prototypes" not in [figure.name for figure in page.figures()]
    assert "last checkpoint" in page.head
    tensors.save(path, named, {"experiment": metadata["experiment"]})
    assert "a checkpoint of another round" in run_page.page(copy).head


def test_a_diverged_run_says_so(whole, tmp_path):
    assert "diverged after round 8" in rendered(damaged(whole, tmp_path, "diverged.json", "{}"))


def test_a_run_from_before_there_were_committees_or_snapshots(whole, tmp_path):
    lines = [json.loads(line) for line in (whole / "rounds.jsonl").read_text().splitlines()]
    gone = ("view", "leader", "committee_messages", "committee_bytes", "evidence", "recall")
    gone += COMMON_COLUMNS
    older = [
        json.dumps({key: value for key, value in line.items() if key not in gone}) + "\n"
        for line in lines
    ]
    copy = damaged(whole, tmp_path, "rounds.jsonl", "".join(older))
    for name in ("partition.csv", "prototypes.safetensors", "trail.jsonl"):
        (copy / name).unlink()
    # The first 14 columns are those from before there was a test on all classes.
    rows = [line.split(",")[:14] for line in (copy / "clients.csv").read_text().splitlines()]
    (copy / "clients.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    assert sorted(figures(copy)) == ["accuracy", "clients", "partition", "prototypes", "traffic"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("experiment.toml", "rounds ="),
        ("experiment.toml", 'colour = "red"'),
        ("experiment.toml", f'data = {{name = "{"x" * 300}"}}'),
        ("rounds.jsonl", "garbage\n"),
        ("result.json", "["),
        ("result.json", '{"silhouette": "much"}'),
        ("environment.json", "{"),
        ("environment.json", '{"partition": {"classes_mean": "many"}}'),
    ],
)
def test_what_cannot_be_read_is_one_line(whole, tmp_path, name, content):
    with pytest.raises(UserError) as raised:
        run_page.page(damaged(whole, tmp_path, name, content))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss", '"<script>"'),
        ("loss", "1e999"),
        ("loss", "[1]"),
        ("filtered", '["<b>"]'),
        ("filtered", "[-1]"),
        ("filtered", "3"),
        ("refused", '{"<b>": "x"}'),
        ("refused", '{"1": 2}'),
        ("recall", '["<b>"]'),
        ("recall", "3"),
        ("accuracy_all", '"<b>"'),
        ("bytes_up", "null"),
        ("bytes_up", "true"),
        ("bytes_up", "1.5"),
        ("bytes_up", str(10**40)),
    ],
)
def test_a_record_with_another_type_of_value_is_refused_by_its_line_and_name(
    whole, tmp_path, field, value
):
    lines = (whole / "rounds.jsonl").read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), field: "VALUE"}).replace('"VALUE"', value)
    with pytest.raises(UserError, match=f"line 2: .*{field} is not"):
        run_page.page(damaged(whole, tmp_path, "rounds.jsonl", "\n".join(lines) + "\n"))


@pytest.mark.parametrize(
    ("name", "content", "missing"),
    [
        ("clients.csv", "", "clients"),
        ("clients.csv", "round,client\n1,2\n", "clients"),
        ("clients.csv", "\0\n", "clients"),
        ("clients.csv", b"\xff\n", "clients"),
        ("partition.csv", "client,class,train,test\n0,1,2\n", "partition"),
        ("partition.csv", "client,class,train,test\n0,<b>,2,3\n", "partition"),
        ("partition.csv", "client,class,train,test\n0,1,2,-3\n", "partition"),
        ("partition.csv", "client,class,train,tested\n0,1,2,3\n", "partition"),
        ("partition.csv", "", "partition"),
        ("prototypes.safetensors", "garbage", "prototypes"),
    ],
)
def test_what_is_damaged_and_not_needed_is_left_out_and_said(
    whole, tmp_path, name, content, missing
):
    copy = damaged(whole, tmp_path, name, "")
    (copy / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    page = run_page.page(copy)
    assert missing not in [figure.name for figure in page.figures()]
    assert '<ul class="notes">' in page.head


def test_whatever_the_directory_says_stays_text(whole, tmp_path):
    text = rendered(hostile(whole, tmp_path / "copy"))
    assert text.count("<script") == 4
    assert text.count("</script>") == 4
    assert "<img" not in text
    given = re.search(r'id="given">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in given
    assert "\u2028" not in given
    assert json.loads(given)["figures"]["partition"]["data"]["values"][0]["class"].startswith(
        "</script>"
    )


def test_only_its_own_scripts_may_run_and_nothing_is_fetched(whole):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', rendered(whole))[1]
    assert "default-src 'none'" in policy
    assert "script-src 'unsafe-eval' 'sha256-" in policy
    assert "http" not in policy


def test_long_texts_are_cut(whole, tmp_path):
    text = (whole / "environment.json").read_text()
    known = {**json.loads(text), "device": "x" * 100_000, "revision": "y" * 100_000}
    size = len(rendered(whole))
    copy = damaged(whole, tmp_path, "environment.json", json.dumps(known))
    assert len(rendered(copy)) < size + 10_000


def test_without_the_package_it_says_what_to_install(whole, monkeypatch):
    monkeypatch.setattr(vega, "find_spec", lambda name: None)
    assert "pip install 'fedrfq[report]'" in fedrfq("report", whole, expect=2).stderr


def test_the_page_is_an_html_file(whole, tmp_path):
    done = fedrfq("report", whole, "--out", tmp_path / "page", expect=2)
    assert "such as report.html" in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_too_much_to_draw_is_cut_and_that_is_said(whole, monkeypatch):
    run = RunData.read(whole)
    shares = [
        Share(client, label, 3, 1)
        for client in (0, 199, 200)
        for label in (0, 127, *range(200, 400))
    ]
    crowd = Clients(tuple(replace(run.clients.last[0], number=number) for number in range(300)), ())
    large = replace(run, shares=shares, clients=crowd)
    figure = client_figures.partition(large)
    assert {row["client"] for row in figure.rows} == {0, 199}
    assert len({row["label"] for row in figure.rows}) == 128
    assert "first 128 of 202 classes" in figure.caption
    figure = client_figures.accuracies(large)
    assert {row["client"] for row in figure.rows} == set(range(200))
    assert "first 200 of 300 clients" in figure.caption
    monkeypatch.setattr(projection, "_MAX_POINTS", 5)
    figure = projection.projection(run)
    assert sum(row["kind"] == "client" for row in figure.rows) == 5
    assert "first 5 of" in figure.caption


def test_with_many_classes_names_take_the_place_of_diamonds(whole, monkeypatch):
    monkeypatch.setattr(projection, "_MAX_DIAMONDS", 3)
    figure = projection.projection(RunData.read(whole))
    assert "Names are global" in figure.caption
    assert [layer["mark"]["type"] for layer in figure.spec["layer"]] == ["point", "text"]


def test_the_main_figures_stand_on_top(attacked, tmp_path):
    head = run_page.page(attacked).head
    last = records(attacked)[-1]
    for value in (
        f"{last['accuracy_mean']:.2f} %",
        f"{last['prototype_accuracy_mean']:.2f} %",
        "proofs of misbehaviour",
    ):
        assert value in head
    local = run_page.page(ran(tmp_path, "method.name=local")).head
    assert "nearest prototype" not in local
    assert "view changes" not in local


def test_lengths_are_said_in_units():
    assert [run_page.length(count) for count in (0, 999, 5820, 2_500_000, 7_200_000_000)] == [
        "0 B",
        "999 B",
        "5.82 kB",
        "2.5 MB",
        "7.2 GB",
    ]


def test_a_figure_that_vega_refuses_is_one_line():
    with pytest.raises(UserError, match="the figure 'odd' cannot be drawn"):
        vega.png(Figure("odd", "Odd", "", [{"x": 1}], {"mark": "nothing", "encoding": {}}))


def test_data_that_must_be_fetched_is_named_before_the_run(whole, tmp_path):
    text = (whole / "experiment.toml").read_text()
    text = text.replace('name = "mnist5k"', 'name = "cifar10"', 1)
    copy = damaged(whole, tmp_path, "experiment.toml", text)
    assert "fedrfq data get cifar10\nfedrfq run" in rendered(copy)


def test_a_program_that_cannot_be_had_is_one_line():
    failing = subprocess.Popen(
        [sys.executable, "-c", "raise SystemExit(3)"], stdout=subprocess.PIPE, text=True
    )
    with failing, pytest.raises(UserError, match="install it again"):
        vega._finished(failing)


def test_a_picture_has_no_layer_for_a_mouse(whole):
    figure = figures(whole)["accuracy"]
    assert len(figure.picture({})["layer"]) == len(figure.page()["layer"]) - 1
    assert all("tooltip" not in layer["encoding"] for layer in figure.picture({})["layer"])
