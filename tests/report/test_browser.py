"""The report as files and in a real browser: interactive, in dark mode, on a phone and on paper."""

import csv
import json
import shutil

import pytest

from support.command import fedrfq, records
from support.reports import ATTACK, COMMITTEE, hostile, ran

FIGURES = [
    "accuracy",
    "agreeing",
    "calibration",
    "clients",
    "committee",
    "filtered",
    "known",
    "partition",
    "prototypes",
    "recall",
    "traffic",
    "trail",
]
MARKS = (
    "svg .mark-rect.role-mark path, svg .mark-line.role-mark path, svg .mark-symbol.role-mark path"
)
RIGHTMOST = (
    "Math.max(...[...document.querySelectorAll('.chart svg')]"
    ".map(s => s.getBoundingClientRect().right))"
)


@pytest.fixture(scope="module")
def run(_data_folder, tmp_path_factory):
    """Return a run with everything that a report can show, and markup in every text."""
    folder = tmp_path_factory.mktemp("page")
    return hostile(ran(folder / "runs", *COMMITTEE, *ATTACK), folder / "run")


@pytest.fixture(scope="module")
def page(run):
    fedrfq("report", run)
    return run / "report.html"


def drawn(tab):
    """Return the number of marks of each figure."""
    count = f"f => [f.id, f.querySelectorAll('{MARKS}').length]"
    return tab.js(f"Object.fromEntries([...document.querySelectorAll('figure')].map({count}))")


def centre(tab, element):
    """Scroll an element into view, and return where its middle is."""
    script = "(e => { e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
    x, y = tab.js(f"{script} return [r.x + r.width / 2, r.y + r.height / 2]; }})({element})")
    return x, y


def test_every_figure_lies_beside_the_page_as_a_picture_and_a_table(page):
    assert page.stat().st_size < 3_000_000
    beside = sorted(path.name for path in (page.parent / "report").iterdir())
    assert beside == sorted(f"{name}.{kind}" for name in FIGURES for kind in ("csv", "png"))
    for name in FIGURES:
        assert (page.parent / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((page.parent / "report" / "committee.csv").read_text().splitlines()))
    assert [int(row["leader"]) for row in rows] == [
        record["leader"] for record in records(page.parent)
    ]


def test_all_charts_are_drawn_without_a_word_of_complaint_and_nothing_is_fetched(tab, page):
    tab.open(page)
    marks = drawn(tab)
    assert sorted(marks) == FIGURES
    assert all(marks.values())
    assert marks["partition"] == len((page.parent / "partition.csv").read_text().splitlines()) - 1
    assert tab.errors == []
    assert set(tab.asked) == {page.as_uri()}


def test_markup_in_the_directory_is_only_text(tab, page):
    tab.open(page)
    assert tab.js("window.hacked === undefined")
    assert "<script>window.hacked" in tab.js("document.querySelector('h1').innerText")


def test_hovering_shows_the_values(tab, page, run):
    tab.open(page)
    points = "document.querySelectorAll('#accuracy svg .mark-symbol.role-mark path')"
    labels = tab.js(f"[...{points}].map(p => p.ariaLabel)")
    second = next(
        i for i, label in enumerate(labels) if "round: 2;" in label and "series: own head;" in label
    )
    x, y = centre(tab, f"{points}[{second}]")
    tab.mouse("mouseMoved", x + 30, y + 30)
    tab.mouse("mouseMoved", x, y)
    tooltip = tab.js("document.querySelector('#vg-tooltip-element.visible').innerText")
    assert f"{records(run)[1]['accuracy_mean']:.2f}" in tooltip
    assert f"{records(run)[1]['accuracy_std']:.2f}" in tooltip
    assert "own head" in tooltip


def test_the_legend_singles_series_out_and_brings_them_back(tab, page):
    tab.open(page)
    lines = "[...document.querySelectorAll('#accuracy svg .mark-line.role-mark path')]"
    lines += ".map(p => +(p.getAttribute('opacity') ?? 1))"
    before = tab.js(lines)
    assert set(before) == {1}
    tab.click(*centre(tab, "document.querySelector('#accuracy .role-legend-symbol path')"))
    assert sorted(tab.js(lines))[-2:] == [0.06, 1]
    tab.click(*centre(tab, "document.querySelector('#accuracy .role-legend-symbol path')"))
    assert tab.js(lines) == before


def test_the_wheel_zooms_only_with_control_and_a_double_click_goes_back(tab, page):
    tab.open(page)
    ticks = "[...document.querySelectorAll('#accuracy .role-axis-label text')]"
    ticks += ".map(t => t.textContent).sort().join()"
    before = tab.js(ticks)
    x, y = centre(tab, "document.querySelector('#accuracy svg')")
    tab.mouse("mouseMoved", x, y)
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
    assert tab.js(f"new Promise(r => setTimeout(() => r({ticks}), 500))") == before
    x, y = centre(tab, "document.querySelector('#accuracy svg')")
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400, modifiers=2)
    assert tab.js(f"new Promise(r => setTimeout(() => r({ticks}), 300))") != before
    for count in (1, 2):
        tab.mouse("mousePressed", x, y, button="left", clickCount=count)
        tab.mouse("mouseReleased", x, y, button="left", clickCount=count)
    assert tab.js(f"new Promise(r => setTimeout(() => r({ticks}), 300))") == before


def test_by_night_the_page_and_its_charts_are_dark_at_once(tab, page):
    tab.open(page)
    label = "getComputedStyle(document.querySelector('#accuracy .role-axis-label text')).fill"
    ground = "getComputedStyle(document.body).backgroundColor"
    day = tab.js(label), tab.js(ground)
    tab.look(dark=True)
    tab.js("new Promise(r => setTimeout(() => window.drawn.then(() => r(1)), 200))")
    night = tab.js(label), tab.js(ground)
    assert brightness(day[0]) < 0.5 < brightness(day[1])
    assert brightness(night[1]) < 0.2 < 0.5 < brightness(night[0])
    assert all(drawn(tab).values())
    assert tab.errors == []


def brightness(colour):
    return sum(int(part) for part in colour.strip("rgb()").split(",")) / 765


def outgrown(tab):
    """Return the figures whose legends reach beyond them."""
    outside = """legend => {
        const l = legend.getBoundingClientRect();
        const c = legend.closest('.chart').getBoundingClientRect();
        return l.right > c.right + 1 || l.top < c.top - 1;
    }"""
    legends = f"[...document.querySelectorAll('.role-legend')].filter({outside})"
    return tab.js(f"{legends}.map(legend => legend.closest('figure').id)")


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_wider_than_the_screen(tab, page, dark):
    tab.open(page, width=400, dark=dark)
    assert tab.js("document.documentElement.scrollWidth") <= 400
    assert tab.js(RIGHTMOST) <= 400
    assert outgrown(tab) == []
    assert all(drawn(tab).values())
    assert tab.errors == []


def test_on_paper_there_are_no_buttons_and_charts_are_dark_on_white_even_by_night(tab, page):
    tab.open(page, dark=True)
    tab.look(width=700, dark=True, media="print")
    assert tab.js("getComputedStyle(document.querySelector('.save')).display") == "none"
    assert brightness(tab.js("getComputedStyle(document.body).backgroundColor")) == 1
    text = "getComputedStyle(document.querySelector('#accuracy svg text')).fill"
    assert brightness(tab.js(text)) < 0.3
    assert max(tab.js(RIGHTMOST), tab.js("document.documentElement.scrollWidth")) <= 700
    assert tab.pdf().startswith(b"%PDF")


def test_buttons_save_the_data_that_is_drawn(tab, page):
    tab.open(page)
    spy = "function () { window.saved = [this.download, this.href]; }"
    tab.js(f"HTMLAnchorElement.prototype.click = {spy}; 1")
    tab.js("document.querySelector('#committee [data-save=csv]').click()")
    name, address = tab.js("saved")
    assert name == "committee.csv"
    assert address.startswith("blob:")
    tab.js("document.querySelector('#committee [data-save=png]').click()")
    address = tab.js(
        "new Promise(r => setInterval(() => saved[0].endsWith('png') && r(saved[1]), 20))"
    )
    assert address.startswith("data:image/png")


def test_a_comparison_is_drawn_too(tab, page, run, whole, tmp_path):
    out = tmp_path / "both.html"
    fedrfq("report", run, whole, "--out", out)
    tab.open(out)
    assert sorted(drawn(tab)) == ["accuracy-head", "accuracy-prototype", "final"]
    assert all(drawn(tab).values())
    assert tab.errors == []
    for width in (400, 1200):
        tab.open(out, width=width)
        assert tab.js("document.documentElement.scrollWidth") <= width
        assert outgrown(tab) == []
    given = json.loads(tab.js("document.getElementById('given').textContent"))
    assert given["figures"]["final"]["data"]["values"]


def test_more_series_than_colours_have_dashes_and_can_be_singled_out(tab, whole, tmp_path):
    for seed in range(12):
        shutil.copytree(whole, copy := tmp_path / f"run-{seed}")
        text = (copy / "experiment.toml").read_text()
        (copy / "experiment.toml").write_text(text.replace("seed = 0\n", f"seed = {seed}\n", 1))
    fedrfq("report", tmp_path, "--out", tmp_path / "all.html")
    for width in (400, 1200):
        tab.open(tmp_path / "all.html", width=width)
        assert outgrown(tab) == []
    assert tab.errors == []
    lines = "[...document.querySelectorAll('#accuracy-head svg .mark-line.role-mark path')]"
    dashes = tab.js(f"{lines}.map(p => p.getAttribute('stroke-dasharray'))")
    assert dashes == ["1,0"] * 10 + ["7,3"] * 2
    symbols = "document.querySelectorAll('#accuracy-head .role-legend-symbol path')"
    tab.click(*centre(tab, f"{symbols}[10]"))
    opacity = tab.js(f"{lines}.map(p => +(p.getAttribute('opacity') ?? 1))")
    assert [number for number, value in enumerate(opacity) if value == 1] == [10]
