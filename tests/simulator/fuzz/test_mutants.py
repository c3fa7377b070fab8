"""An expected invariant catches every mutant, on a schedule that the true parties pass.

The schedules are those of the recorded hunt; results/README.md says how to record it again.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedrfq.errors import UserError
from fedrfq.simulator.fuzz.campaign import try_one
from fedrfq.simulator.fuzz.invariants import INVARIANTS
from fedrfq.simulator.fuzz.mutant_hunt import Hunt, MutantVerdict, hunt_one
from fedrfq.simulator.fuzz.mutants import MUTANTS, Mutant
from fedrfq.simulator.fuzz.schedule import draw
from fedrfq.simulator.fuzz.trial import Settings, fitting_seed, report
from support.command import fedrfq
from support.paths import RESULTS

RECORD = RESULTS / "committee" / "mutants.json"
HUNT = json.loads(RECORD.read_text())
RECORDED: dict[str, dict[str, Any]] = {verdict["mutant"]: verdict for verdict in HUNT["mutants"]}
HUNTED = [name for name, mutant in MUTANTS.items() if mutant.hunt]


def test_there_are_many_and_each_says_what_is_broken() -> None:
    assert len(MUTANTS) >= 25
    assert len({mutant.about for mutant in MUTANTS.values()}) == len(MUTANTS)
    for mutant in MUTANTS.values():
        assert 10 < len(mutant.about) < 100
        assert mutant.expected
        assert set(mutant.expected) <= set(INVARIANTS)


def test_the_record_is_of_all_of_them() -> None:
    assert RECORDED.keys() == MUTANTS.keys(), "record the hunt again, as results/README.md says"


def test_the_record_is_of_the_default_hunt_and_took_few_schedules() -> None:
    """A million schedules take an hour or more on two cores; the hunt is to take a minute."""
    assert HUNT["settings"]["seed"] == 0
    assert HUNT["settings"]["schedules"] == 20_000
    assert sum(verdict["schedules"] for verdict in RECORDED.values()) < 5_000


@pytest.mark.parametrize("name", MUTANTS)
def test_it_is_found_out_where_the_true_parties_pass(name: str) -> None:
    verdict = RECORDED[name]
    settings = Settings(verdict["servers"], 1, HUNT["settings"]["seed"], name)
    breach = hunt_one(settings, verdict["schedules"] - 1).breach
    assert breach is not None
    assert breach.schedule_seed == verdict["schedule_seed"]
    assert breach.invariant in MUTANTS[name].expected
    assert report(replace(settings, mutant=None), breach.schedule_seed).violation is None


@pytest.mark.parametrize("servers", [4, 7, 10])
@pytest.mark.parametrize("name", HUNTED)
def test_it_is_hunted_with_schedules_that_fit(name: str, servers: int) -> None:
    settings = Settings(servers, 1, 0, name)
    seeds = [fitting_seed(settings, index) for index in range(3)]
    assert len(set(seeds)) == 3
    assert all(MUTANTS[name].is_hunted_with(draw(seed, servers)) for seed in seeds)
    # A condition that most schedules meet would be of no use.
    any_schedules = [draw(settings.schedule_seed(index), servers) for index in range(100)]
    assert sum(map(MUTANTS[name].is_hunted_with, any_schedules)) < 60


def test_conditions_that_no_schedule_meets_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = replace(MUTANTS["sends-first"], hunt=(lambda schedule: False,))
    monkeypatch.setitem(MUTANTS, "sends-first", impossible)
    monkeypatch.setattr("fedrfq.simulator.fuzz.trial._MAX_DRAWS", 5)
    with pytest.raises(UserError, match="none of 5 schedules with 4 servers"):
        fitting_seed(Settings(4, 1, 0, "sends-first"), 0)


QUICK = ("receipt-not-listed", "sends-first", "unchained-rounds")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(MUTANTS) - set(QUICK):
        monkeypatch.delitem(MUTANTS, name)


@pytest.mark.usefixtures("quick")
def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "mutants.json"
    first = fedrfq("committee", "fuzz", "--mutants", "--jobs", 2, "--out", out, "--json")
    record = json.loads(first.stdout.splitlines()[-1])
    assert record["settings"]["schedules"] == 20_000
    verdicts = record["mutants"]
    assert [verdict["mutant"] for verdict in verdicts] == [m for m in MUTANTS if m in QUICK]
    assert all(verdict["true_breaks"] is None for verdict in verdicts)
    assert "s of CPU time, with 2 processes" in first.stdout
    assert "3 of 3 mutants caught" in (tmp_path / "mutants.md").read_text()
    assert json.loads(out.read_text()) == record


@pytest.mark.usefixtures("quick")
def test_it_goes_on_after_the_last_mutant_that_was_judged(tmp_path: Path) -> None:
    out = tmp_path / "mutants.json"
    options = ("committee", "fuzz", "--mutants", "--schedules", 50, "--jobs", 1)
    record = json.loads(fedrfq(*options, "--json").stdout.splitlines()[-1])
    stopped = {**record, "mutants": record["mutants"][:1], "timing": {"seconds": 1000}}
    out.write_text(json.dumps(stopped))
    continued = json.loads(fedrfq(*options, "--out", out, "--json").stdout.splitlines()[-1])
    assert continued["mutants"] == record["mutants"]
    assert continued["timing"]["seconds"] >= 1000
    assert "other settings" in fedrfq(*options, "--seed", 9, "--out", out, expect=2).stderr
    out.write_text('{"settings": {}}')
    assert "not the record of a mutant hunt" in fedrfq(*options, "--out", out, expect=2).stderr


@pytest.mark.usefixtures("quick")
def test_a_mutant_that_survives_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MUTANTS, "harmless", Mutant("nothing at all is broken", ("agreement",)))
    done = fedrfq("committee", "fuzz", "--mutants", "--schedules", 3, "--jobs", 1, expect=1)
    assert "it survived" in done.stdout
    assert "3 of 4 mutants caught" in done.stdout


@pytest.mark.usefixtures("quick")
def test_another_invariant_than_expected_does_not_end_the_hunt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = replace(MUTANTS["sends-first"], expected=("agreement",))
    monkeypatch.setitem(MUTANTS, "sends-first", elsewhere)
    settings = Settings(4, 1, 0, "sends-first")
    assert try_one(settings, 0).breach is not None
    assert hunt_one(settings, 0).breach is None
    options = ("committee", "fuzz", "--mutants", "--schedules", 3, "--jobs", 1, "--json")
    done = fedrfq(*options, expect=1)
    assert "2 of 3 mutants caught" in done.stdout
    verdicts = json.loads(done.stdout.splitlines()[-1])["mutants"]
    (verdict,) = [verdict for verdict in verdicts if verdict["mutant"] == "sends-first"]
    assert verdict["schedules"] == verdict["unexpected"] == 3
    assert verdict["invariant"] is None
    # It does where the true replica breaks an invariant too.
    monkeypatch.setattr("fedrfq.simulator.fuzz.trial.TRUE", elsewhere)
    assert hunt_one(settings, 0).breach == try_one(settings, 0).breach
    assert "(the real replica breaks durability)" in fedrfq(*options, expect=1).stdout


def test_who_breaks_another_invariant_or_falls_with_the_true_replica_is_not_caught() -> None:
    good = MutantVerdict("sends-first", 4, 1, 0, "durability", 1)
    assert good.caught()
    assert not replace(good, invariant="agreement").caught()
    assert not replace(good, true_breaks="durability").caught()
    assert not MutantVerdict("sends-first", 4, 50).caught()
    assert Hunt(Settings(4, 1, 0)).verdicts == {}
