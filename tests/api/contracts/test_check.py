"""`fedrfq check`: each kind's contract catches a plugin that breaks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrfq.api.contracts.check import findings
from fedrfq.api.new_plugin import write
from fedrfq.methods import METHODS
from fedrfq.plugins import load_plugin
from support.command import fedrfq as command
from support.outside import new_process


@pytest.fixture(autouse=True)
def _data(apart: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "data"))


# By kind: what is changed in the file that `fedrfq new` writes, and what the check says then.
BAD = [
    ("method", ".mean(-1)", ".mean(-1) * float('nan')", "is not a number"),
    ("method", ".mean(-1)", ".mean(-1) * 0", "the added loss is 0"),
    ("method", ".mean(-1)", ".mean((0, -1))", "with others beside it"),
    ("method", ".mean(-1)", ".mean(-1) * __import__('random').random()", "from rng alone"),
    ("method", 'option(0.5, "Weight of the prototype loss (λ)", "0 or more")', "0.5", "lam has"),
    (
        "method",
        "        return difference",
        "        return difference_KBV.abs().mean(-1)\n"
        "    def losses(self, batch, guide):\n"
        "        batch.c_KBD.data.mul_(2)\n"
        "        return super().losses(batch, guide)\n"
        "    def unused(self, difference_KBV):\n"
        "        return difference",
        "losses() changes c_KBD in place",
    ),
    # It says that the guide carries an option, and reads it from itself.
    (
        "method",
        "    def distance",
        '    sharpness: float = option(1.0, "Of the pull", "above 0")\n'
        '    carried = ("lam", "aggregate", "sharpness")\n'
        "    def pull(self, p_KBV, target_KBV):\n"
        "        return super().pull(p_KBV, target_KBV) * self.sharpness\n"
        "    def distance",
        "models differ beside another run",
    ),
    ("attack", "rounds * self", "np.random.random() * self", "the same seed gives other uploads"),
    ("attack", "np.array(rounds, np.int64)}", "np.array(1.5)}", "must be int64"),
    (
        "attack",
        "np.array(rounds, np.int64)}",
        "np.array(rounds, np.int64), 'all': np.zeros(rounds, np.int64)}",
        "it remembers more in every round",
    ),
    ("attack", "sent = replaced(", "scene.uploads.values_KJV[0] += 1; sent = (", "read-only"),
    ("detector", "sum(1) //", "sum(1) /", "/ divides in floating point"),
    (
        "detector",
        "* uploads.held_KJ\n",
        ".astype('f8').astype('i8')\n",
        "float64",
    ),
    (
        "detector",
        "* uploads.held_KJ\n",
        "* (hash('x') % 1_000_003 + 1) * uploads.held_KJ\n",
        "other bytes",
    ),
    ("detector", "kept_K[worst_K[: self.drop]]", "kept_K[: self.drop]", "depends on the order"),
    (
        "detector",
        "return state, Verdict",
        "state = {'all': np.zeros(len(state.get('all', [])) + 1, np.int64)}\n"
        "        return state, Verdict",
        "it remembers more in every round",
    ),
    ("rule", "(low_JV + high_JV) // 2", "np.mean([low_JV, high_JV], 0)", "mean is not exact"),
    ("rule", "(low_JV + high_JV) // 2", "low_JV * np.float32(1)", "must be int64"),
    ("rule", "(low_JV + high_JV) // 2", "uploads.values_KJV[0]", "depend on the order"),
    ("model", 'name.startswith("decide.")', "False", "head() marks []"),
    ("model", "F.relu(hidden_KBD)", "F.relu(hidden_KBD - hidden_KBD.mean(0))", "beside others"),
    ("model", "return self.hidden\n", "return self.hidden + 1\n", "features have the shape"),
    ("public-map", "grey_N1HW = ", "grey_N1HW = torch.rand(1) * ", "have other vectors"),
    ("dataset", "array_file.read(path)", "path.read_bytes()[0]", "takes a nonsense for the"),
    ("dataset", "array_file.read(path)", "int(path.read_bytes())", "fails with ValueError"),
    ("dataset", "std=(0.25,)", "std=(0.0,)", "std is 0.0"),
    ("partition", "np.sort(order[client::clients][: self.most])", "order[:9]", "are not sorted"),
    ("partition", "order = rng", "order = np.random", "draw from rng alone"),
    (
        "partition",
        "train.append(own)",
        "own = own[dataset.train_y[own] < 3]; train.append(own)\n"
        "            test.append(np.arange(9)); continue",
        "is tested on a class",
    ),
    ("pooling", "((high + low) / 2)", "((high + low) / 2).detach()", "does not require grad"),
    ("pooling", "((high + low) / 2)", "((high + low) / 2 + 1)", "with kernel 1 a value changes"),
    ("adversary", "return self.send_to_some(effect.message)", "1 / 0", "own.py, line 19: ZeroDiv"),
    ("tracker", "path.touch()", "1 / 0", "ZeroDivisionError"),
    (
        "tracker",
        "with opened",
        "opened.with_name('rounds.jsonl').unlink()\n        with opened",
        "No such file",
    ),
]


@pytest.mark.parametrize(("kind", "before", "after", "found"), BAD)
def test_a_bad_plugin_is_caught(
    kind: str, before: str, after: str, found: str, tmp_path: Path
) -> None:
    file, _ = write(kind, "own", tmp_path)
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    # One after the other, and no further than what is looked for.
    failed = (one.found for one in findings(load_plugin(file), str(file)) if not one.holds)
    assert any(found in what for what in failed)


def test_an_option_of_any_name_may_be_read_by_the_loss(tmp_path: Path) -> None:
    """Runs that differ in it are not stacked, unless the method says that the guide carries it."""
    file, _ = write("method", "own", tmp_path)
    text = file.read_text().replace(
        "    def distance", '    steps: int = option(1, "Of nothing", "any")\n    def distance'
    )
    file.write_text(text.replace("abs().mean(-1)", "abs().mean(-1) * self.steps"))
    assert all(one.holds for one in findings(load_plugin(file), str(file)))
    assert METHODS["own"](steps=1).program() != METHODS["own"](steps=2).program()
    assert METHODS["own"](lam=1.0).program() == METHODS["own"](lam=2.0).program()


def test_a_rule_may_have_fields_which_no_experiment_sets(tmp_path: Path) -> None:
    file, _ = write("rule", "own", tmp_path)
    file.write_text(
        file.read_text().replace("    # K clients", "    passes: int = 5\n    # K clients")
    )
    first = next(iter(findings(load_plugin(file), str(file))))
    assert (first.holds, first.found) == (True, "it has no options")


def test_the_command_has_a_line_for_each_check_and_says_what_fails(tmp_path: Path) -> None:
    file, _ = write("rule", "own", tmp_path)
    table = command("check", file).stdout
    assert table.count("holds") == 6
    assert "6 checks, 0 failed" in table
    file.write_text(file.read_text().replace(") // 2", ") / 2"))
    new_process()
    answer = json.loads(command("check", file, "--json", expect=1).stdout)
    assert not answer["holds"]
    (exact,) = [row for row in answer["checks"] if "exact" in row["check"]]
    assert exact["found"] == "own.py, line 34: / divides in floating point: use //"
    new_process()
    assert "FAILS" in command("check", file, expect=1).stdout


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert "cannot read" in command("check", tmp_path / "x.py", expect=2).stderr
    assert "no installed package of plugins" in command("check", "nopack", expect=2).stderr
