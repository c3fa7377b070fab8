"""The page of several runs: grouped by settings, averaged over seeds, compared with the first."""

import json
import re

import numpy as np
import pytest
import vl_convert

from fedrfq.errors import UserError
from fedrfq.report import comparison_page, groups, marks, markup, theme, vega
from fedrfq.report.figure import Figure
from fedrfq.report.groups import Brief, differing, grouped
from fedrfq.report.live_runs import LiveRuns
from fedrfq.runs.find_runs import runs_in
from fedrfq.studies.intervals import difference
from support.command import SMALL, damaged, fedrfq, records, sets
from support.reports import ran


@pytest.fixture(scope="module")
def folder(_data_folder, tmp_path_factory):
    """Return a folder with runs of two methods, two seeds each."""
    out = tmp_path_factory.mktemp("compared")
    for method in ("fedrfq", "fedproto"):
        settings = [*SMALL, "rounds=2", f"method.name={method}"]
        fedrfq("run", *sets(settings), "--seed", 0, "--seed", 1, "--out", out)
    return out


def last(path, field):
    return records(path)[-1][field]


def test_all_runs_in_a_folder_are_found_however_deep_and_none_twice(folder):
    found = runs_in([folder])
    assert len(found) == 4
    assert runs_in([folder / "mnist5k-fedrfq", *found]) == sorted(
        found, key=lambda path: "proto" in str(path)
    )
    assert runs_in(found[:1]) == found[:1]


def test_a_folder_without_runs_is_one_line(tmp_path):
    assert "contains none" in fedrfq("report", tmp_path, expect=2).stderr
    assert "contains none" in fedrfq("report", tmp_path / "nowhere", expect=2).stderr


def test_a_folder_with_an_experiment_that_never_ran_is_no_run(tmp_path):
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "experiment.toml").write_text("rounds = 5\n")
    assert "contains none" in fedrfq("report", tmp_path, expect=2).stderr


def test_runs_that_differ_in_the_seed_alone_are_one_group(folder):
    found = grouped([Brief.read(path) for path in runs_in([folder])])
    assert [(group.label, len(group.runs)) for group in found] == [("fedproto", 2), ("fedrfq", 2)]
    assert differing([group.settings for group in found])[0] == "method.name"


def test_where_all_settings_are_alike_each_run_has_its_seed_or_its_place(folder):
    runs = [Brief.read(path) for path in runs_in([folder / "mnist5k-fedrfq"])]
    assert [group.label for group in grouped(runs)] == ["seed 0", "seed 1"]
    twice = grouped([runs[0], runs[0]])
    assert all(str(runs[0].path).endswith(group.label) for group in twice)


def test_labels_are_as_short_as_tells_them_apart_and_never_the_same():
    one, two, three = (
        {"method.name": "a", "lam": lam, "rounds": n}
        for lam, n in (("1", "5"), ("1", "6"), ("2", "6"))
    )
    assert groups._labels([one, two]) == ["rounds=5", "rounds=6"]
    assert groups._labels([one, two, three]) == [
        "lam=1, rounds=5",
        "lam=1, rounds=6",
        "lam=2, rounds=6",
    ]
    assert groups._labels([{"data.name": "/x/a.npz"}, {"data.name": "/y/a.npz"}]) == [
        "a (1)",
        "a (2)",
    ]
    assert groups._labels([{"pool.name": "none"}, {"pool.name": "x" * 99}]) == [
        "pool none",
        ("pool " + "x" * 99)[:60],
    ]


def test_curves_and_ends_are_means_over_seeds_with_their_deviation(folder):
    drawn = {figure.name: figure for figure in comparison_page.page(runs_in([folder])).figures()}
    assert list(drawn) == ["accuracy-head", "accuracy-prototype", "final"]
    means = [last(path, "prototype_accuracy_mean") for path in runs_in([folder / "mnist5k-fedrfq"])]
    (end,) = [
        row
        for row in drawn["final"].rows
        if (row["setting"], row["series"]) == ("fedrfq", "nearest prototype")
    ]
    curve = [row for row in drawn["accuracy-prototype"].rows if row["series"] == "fedrfq"]
    for row in (end, curve[-1]):
        assert row["mean"] == pytest.approx(np.mean(means))
        assert row["std"] == pytest.approx(np.std(means, ddof=1))
        assert row["runs"] == 2
    assert [row["round"] for row in curve] == [1, 2]


def test_the_table_has_the_final_prediction_on_all_classes(folder):
    text = comparison_page.page(runs_in([folder])).render("")
    fields = ("accuracy_all", "accuracy_held", "accuracy_unheld", "ece")
    runs = runs_in([folder / "mnist5k-fedrfq"])
    found = {field: np.mean([last(path, field) for path in runs]) for field in fields}
    on_all, held, unheld, ece = [f"{mean:.2f} %" for mean in found.values()]
    for cell in (on_all, f"{held} / {unheld}", ece):
        assert f">{cell}<" in text


def picture(series):
    """Return the lines of so many series, and those in the legend, as (colour, dashes)."""
    names = [f"series {k}" for k in range(series)]
    rows = [
        {"series": name, "round": r, "mean": 1, "low": 0, "high": 2}
        for name in names
        for r in (1, 2)
    ]
    figure = Figure("a", "A", "", rows, marks.curves(names, marks.axis("mean", ""), [], band=True))
    svg = vl_convert.vegalite_to_svg(figure.picture(theme.DAY), vl_version=vega._VERSION)
    assert svg.count('role-legend"') == 1
    looks = [
        (path, *re.findall(r'stroke="([^"]+)"', path), re.findall(r'dasharray="([^"]+)"', path))
        for path in paths(svg)
    ]
    drawn = [look for path, *look in looks if "line mark" in path]
    legend = [look for path, *look in looks if 'd="M-13,0L13,0"' in path]
    return drawn, legend


def paths(svg):
    return re.findall(r'<path [^>]*stroke="#[^>]*>', svg)


def test_lines_of_one_colour_are_told_apart_by_their_dashes_in_the_legend_too():
    drawn, legend = picture(63)
    assert drawn == legend
    assert len(drawn) == 63
    assert len({str(look) for look in drawn}) == 63
    assert len({colour for colour, _ in drawn}) == 10 == marks.COLOURS


def test_as_many_lines_as_there_are_colours_need_no_dashes():
    drawn, _ = picture(10)
    assert len({colour for colour, _ in drawn}) == 10
    assert not any(dashes for _, dashes in drawn)


def test_of_one_run_the_deviation_is_over_clients(folder):
    paths = [runs_in([folder / name])[0] for name in ("mnist5k-fedrfq", "mnist5k-fedproto")]
    rows = comparison_page.page(paths).figures()[0].rows
    assert rows[1]["std"] == last(paths[0], "accuracy_std")


def test_the_table_has_the_differences_to_the_first_and_the_settings_that_differ(folder):
    text = comparison_page.page(runs_in([folder])).render("")
    own = [
        [last(path, "accuracy_mean") for path in runs_in([folder / f"mnist5k-{name}"])]
        for name in ("fedproto", "fedrfq")
    ]
    paired = difference(own[1], own[0])
    assert f'<td class="number">{paired.mean:+.2f} ± {paired.half:.2f}</td>' in text
    assert f"{np.mean(own[0]):.2f} %" in text
    assert "<td>method.name</td><td>fedproto</td><td>fedrfq</td>" in text
    assert "<td>data.name</td>" not in text
    assert len(re.findall(r"<td>[^<]*-seed[01]-", text)) == 4


def test_of_too_many_runs_the_first_are_shown_and_that_is_said(folder, monkeypatch):
    monkeypatch.setattr(comparison_page, "MAX_RUNS", 3)
    page = comparison_page.page(runs_in([folder]))
    assert "Only the first 3 of 4 runs" in page.head
    assert "3 runs" in page.subtitle


def test_runs_without_rounds_or_prototypes_are_compared_as_far_as_they_go(folder, tmp_path):
    local = ran(tmp_path / "local", "method.name=local")
    begun = ran(tmp_path / "begun", "method.lam=0.5")
    (begun / "rounds.jsonl").write_text("")
    page = comparison_page.page([*runs_in([folder]), local, begun])
    assert f"{begun} has no rounds yet" in page.head
    drawn = {figure.name: figure for figure in page.figures()}
    assert "local, rounds=3" in {row["setting"] for row in drawn["final"].rows}
    assert "local, rounds=3" not in {row["series"] for row in drawn["accuracy-prototype"].rows}
    dash = '<td class="number">–</td>'
    # Two accuracies of the run that has begun, each with its difference, two on all classes and
    # what it uploads; and what the other lacks by prototype.
    assert page.sections[0].body.count(dash) == 7 + 2
    assert "nan" not in comparison_page.page([local, *runs_in([folder])]).sections[0].body
    assert comparison_page.page([begun, begun / "."]).figures() == []


def unknown_method(run, copy):
    """Copy a run, as if its method had been one of a notebook's that nothing here registers."""
    text = (run / "experiment.toml").read_text()
    return damaged(run, copy, "experiment.toml", text.replace('"fedproto"', '"pull"', 1))


def test_a_run_that_cannot_be_read_is_left_out_and_its_file_named(folder, tmp_path):
    good = runs_in([folder])
    unknown = unknown_method(good[0], tmp_path)
    broken = damaged(good[0], tmp_path / "broken", "rounds.jsonl", json.dumps({"round": 1}) + "\n")
    lines = [f"Left out: {unknown / 'experiment.toml'}", f"Left out: {broken / 'rounds.jsonl'}"]
    for page in (comparison_page.page, LiveRuns().several):
        shown = page([unknown, *good, broken])
        for line, expected in zip(shown.left_out, lines, strict=True):
            assert line.startswith(expected)
            assert markup.text(line) in shown.head


def test_commands_name_the_file_of_a_run_with_an_unknown_method(folder, tmp_path):
    run = unknown_method(runs_in([folder])[0], tmp_path)
    file = str(run / "experiment.toml")
    for command in ("report", "show"):
        error = fedrfq(command, run, expect=2).stderr
        assert (error.count(file), error.count("\n")) == (1, 1)
    assert "pull" in fedrfq("runs", tmp_path).stdout
    out = tmp_path / "report.html"
    assert fedrfq("report", folder, run, "--out", out).stderr.startswith(f"Left out: {file}")


def test_where_no_run_can_be_read_the_first_is_told(folder, tmp_path):
    bad = damaged(next(iter(runs_in([folder]))), tmp_path, "rounds.jsonl", "x\n")
    with pytest.raises(UserError, match=re.escape(str(bad / "rounds.jsonl"))):
        comparison_page.page([bad, bad / "."])
