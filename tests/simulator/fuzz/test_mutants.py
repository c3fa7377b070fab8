"""An expected invariant catches every mutant, on a schedule that the true parties pass.

The schedules are those of the recorded hunt. Once schedules are drawn differently, record it again:
`fedrfq committee fuzz --mutants --out results/committee/mutants.json`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from fedrfq.simulator.fuzz.invariants import INVARIANTS
from fedrfq.simulator.fuzz.mutant_hunt import Hunt, MutantVerdict
from fedrfq.simulator.fuzz.mutants import MUTANTS, Mutant
from fedrfq.simulator.fuzz.trial import Settings, report
from support.command import fedrfq
from support.paths import RESULTS

RECORD = RESULTS / "committee" / "mutants.json"
RECORDED: dict[str, dict[str, Any]] = {
    verdict["mutant"]: verdict for verdict in json.loads(RECORD.read_text())["mutants"]
}


def test_there_are_many_and_each_says_what_is_broken() -> None:
    assert len(MUTANTS) >= 25
    assert len({mutant.about for mutant in MUTANTS.values()}) == len(MUTANTS)
    for mutant in MUTANTS.values():
        assert 10 < len(mutant.about) < 100
        assert mutant.expected
        assert set(mutant.expected) <= set(INVARIANTS)


def test_the_record_is_of_all_of_them() -> None:
    assert RECORDED.keys() == MUTANTS.keys(), "run the hunt again, as described above"


@pytest.mark.parametrize("name", MUTANTS)
def test_it_is_found_out_where_the_true_parties_pass(name: str) -> None:
    servers = RECORDED[name]["servers"]
    seed = RECORDED[name]["schedule_seed"]
    broken = report(Settings(servers, 1, 0, name), seed).violation
    assert broken is not None
    assert broken.name in MUTANTS[name].expected
    assert report(Settings(servers, 1, 0), seed).violation is None


QUICK = ("receipt-not-listed", "sends-first", "unchained-rounds")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(MUTANTS) - set(QUICK):
        monkeypatch.delitem(MUTANTS, name)


@pytest.mark.usefixtures("quick")
def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "mutants.json"
    first = fedrfq(
        "committee", "fuzz", "--mutants", "--schedules", 50, "--jobs", 2, "--out", out, "--json"
    )
    record = json.loads(first.stdout.splitlines()[-1])
    verdicts = record["mutants"]
    assert [verdict["mutant"] for verdict in verdicts] == [m for m in MUTANTS if m in QUICK]
    assert all(verdict["true_breaks"] is None for verdict in verdicts)
    assert "3 of 3 mutants caught" in (tmp_path / "mutants.md").read_text()
    assert json.loads(out.read_text()) == record


@pytest.mark.usefixtures("quick")
def test_it_goes_on_after_the_last_mutant_that_was_judged(tmp_path: Path) -> None:
    out = tmp_path / "mutants.json"
    options = ("committee", "fuzz", "--mutants", "--schedules", 50, "--jobs", 1)
    uninterrupted = fedrfq(*options, "--json").stdout.splitlines()[-1]
    record = json.loads(uninterrupted)
    out.write_text(json.dumps({**record, "mutants": record["mutants"][:1]}))
    assert fedrfq(*options, "--out", out, "--json").stdout.splitlines()[-1] == uninterrupted
    assert "other settings" in fedrfq(*options, "--seed", 9, "--out", out, expect=2).stderr
    out.write_text('{"settings": {}}')
    assert "not the record of a mutant hunt" in fedrfq(*options, "--out", out, expect=2).stderr


@pytest.mark.usefixtures("quick")
def test_a_mutant_that_survives_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MUTANTS, "harmless", Mutant("nothing at all is broken", ("agreement",)))
    done = fedrfq("committee", "fuzz", "--mutants", "--schedules", 3, "--jobs", 1, expect=1)
    assert "it survived" in done.stdout
    assert "3 of 4 mutants caught" in done.stdout


def test_who_breaks_another_invariant_or_falls_with_the_true_replica_is_not_caught() -> None:
    good = MutantVerdict("sends-first", 4, 0, "durability", 1, None)
    assert good.caught()
    assert not MutantVerdict("sends-first", 4, 0, "agreement", 1, None).caught()
    assert not MutantVerdict("sends-first", 4, 0, "durability", 1, "durability").caught()
    assert not MutantVerdict("sends-first", 4, 50, None, None, None).caught()
    assert Hunt(Settings(4, 1, 0)).verdicts == {}
