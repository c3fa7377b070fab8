"""Nowhere worse: bounds counted by hand, and what a comparison prints and writes of them."""

import pytest

from fedrfq.errors import UserError
from fedrfq.studies.differences import Pair
from fedrfq.studies.intervals import Difference
from fedrfq.studies.no_worse import NoWorse
from support.command import fedrfq
from support.grids import grid_file, table

TOP = """seeds = [0, 1]
controls = false
tune = []
axes.method = ["local", "fedproto", "codes"]
[no_worse]
method = "codes"
than = ["fedproto"]
margin = 0.3"""


def points(mean, half, verdict="undecided"):
    """Return a difference over five seeds."""
    return Difference(5, mean, 1.0, half, verdict)


PAIRS = [
    # The bounds are −0.2, −0.4 and −0.5; the last difference is decided.
    Pair("few", "ours", "codes", {"own": points(0.1, 0.3), "held": points(-0.1, 0.3)}),
    Pair("many", "ours", "codes", {"own": points(-0.4, 0.1, "worse"), "held": None}),
    # Of other methods, the other way round, and over all settings together: none of them counts.
    Pair("few", "ours", "local", {"own": points(-5, 1, "worse"), "held": None}),
    Pair("few", "codes", "ours", {"own": points(-5, 1, "worse"), "held": None}),
    Pair("all settings", "ours", "codes", {"own": points(-5, 1, "worse"), "held": None}),
]
JUDGED = NoWorse("ours", ("codes",), 0.3)


def test_bounds_below_the_margin_by_hand():
    bounds = JUDGED.bounds(PAIRS, ["few", "many"])
    assert [bound.points for bound in bounds] == pytest.approx([-0.2, -0.4, -0.5])
    sheet = JUDGED.sheet(bounds, {"own": "own head, %", "held": "held classes, %"})
    assert sheet.rows == (
        ("few", "codes", "held classes, %", "-0.10 ± 0.30", "-0.40"),
        ("many", "codes", "own head, %", "-0.40 ± 0.10", "-0.50"),
    )
    assert "Of 3 bounds of ours against codes, 2 lie below −0.3; 1 of these" in sheet.note
    plain = JUDGED.plain(bounds)
    assert (plain["bounds"], len(plain["below"])) == (3, 2)


def test_a_single_seed_shows_nothing():
    pair = Pair("few", "ours", "codes", {"own": Difference(1, 3.0, None, None, "undecided")})
    assert JUDGED.below(JUDGED.bounds([pair], ["few"]))


def test_a_comparison_lists_them(tmp_path):
    file = grid_file(tmp_path, TOP, rounds=2)
    done = fedrfq("compare", file, "--out", tmp_path / "out", "--device", "cpu")
    found = table(tmp_path / "out")
    judged = found["no_worse"]
    pair = next(p for p in found["pairs"] if (p["method"], p["other"]) == ("codes", "fedproto"))
    bounds = {name: pair[name]["mean"] - pair[name]["half"] for name in ("own", "prototype")}
    below = {bound["accuracy"] for bound in judged["below"]}
    assert judged["bounds"] == 5
    assert {name for name in bounds if name in below} == {n for n in bounds if bounds[n] < -0.3}
    assert "Where codes may be worse by more than 0.3 points" in done.stdout


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"method": "ours", "than": ["kodes"]}, "write method = "),
        ({"method": "yours", "than": ["codes"]}, "not 'yours'"),
        ({"method": "ours", "than": "codes"}, "not 'ours' and 'codes'"),
        ({"method": "ours", "than": ["codes"], "margin": -1}, "margin must be points"),
        ({"method": "ours", "then": ["codes"]}, "then"),
    ],
)
def test_bad_tables(table, says):
    with pytest.raises(UserError, match=says):
        NoWorse.of({"no_worse": table}, {"ours", "codes"})
