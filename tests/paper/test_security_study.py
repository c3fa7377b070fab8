"""The security probability beside the paper's sentences on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedrfq.errors import UserError
from fedrfq.paper.security_study import SecurityPlan
from fedrfq.studies.plan import StudyResult
from fedrfq.studies.study import Study
from support.studies import shown, study_of


def claims(found: StudyResult) -> dict[str, tuple[bool, str]]:
    return {claim["says"]: (claim["holds"], claim["found"]) for claim in found.whole["claims"]}


def of(folder: Path, **table: Any) -> StudyResult:
    return shown(SecurityPlan.of(study_of("security", table)), folder)


def test_the_study_shows_every_number_of_servers_and_judges_each_sentence(tmp_path: Path) -> None:
    plan = SecurityPlan.of(Study.load("security"))
    assert (plan.experiments, plan.keep) == ((), False)
    found = shown(plan, tmp_path)
    assert [row["servers"] for row in found.rows if row["p"] == 0.1] == list(range(4, 41))
    assert {row["p"] for row in found.rows} == {0.1, 0.2, 0.3}
    assert [row["tolerated"] for row in found.rows[:4:3]] == [1, 1]
    assert found.rows[0]["security"] == 0.9477
    assert found.sheets[0].rows[0] == ("4", "1", "0.947700", "0.819200", "0.651700")
    verdicts = {says: holds for says, (holds, _) in claims(found).items()}
    assert verdicts["security falls as p rises"]
    assert not any(verdicts[f"more servers are more secure, at p = {p}"] for p in (0.1, 0.2, 0.3))
    assert [verdicts[f"… counting only N = 3f + 1, at p = {p}"] for p in (0.1, 0.2, 0.3)] == [
        True,
        True,
        False,
    ]
    assert verdicts["p < 0.1 and more than 20 servers: security is above 0.99"]
    secure = [
        verdicts[f"enough servers make it secure (above 0.99) at p = {p}"] for p in (0.1, 0.2, 0.3)
    ]
    assert secure == [True, False, False]
    assert [row[1] for row in found.sheets[1].rows] == [
        "holds" if holds else "fails" for holds in verdicts.values()
    ]
    assert [path.name for path in found.pictures] == ["security.png"]


def test_where_more_servers_do_help_it_says_so(tmp_path: Path) -> None:
    found = claims(of(tmp_path, servers="6..7", p="0.1"))
    assert found["more servers are more secure, at p = 0.1"] == (True, "with every N")


def test_it_names_the_numbers_that_break_a_sentence(tmp_path: Path) -> None:
    found = claims(of(tmp_path, servers="4..13", p="0.2", enough="0.9", beyond=10))
    assert "N = 5, 6, 8, 9, 11, 12" in found["more servers are more secure, at p = 0.2"][1]
    assert found["more servers are more secure, at p = 0.2"][1].endswith(
        "at most by 0.0819, with 5"
    )
    assert found["p < 0.2 and more than 10 servers: security is above 0.9"] == (
        False,
        "not with N = 11, 12",
    )
    assert (
        claims(of(tmp_path, servers="4..7", p="0.3"))["… counting only N = 3f + 1, at p = 0.3"][1]
        == "security falls with N = 7"
    )
    assert claims(of(tmp_path, servers="4..16", p="0.1", enough="0.95"))[
        "enough servers make it secure (above 0.95) at p = 0.1"
    ] == (True, "from 10 on")


def test_a_certain_fault_does_not_fall_further(tmp_path: Path) -> None:
    assert claims(of(tmp_path, servers="4..5", p="0,0"))["security falls as p rises"] == (
        False,
        "not with N = 4, 5",
    )


def test_probabilities_are_taken_in_order(tmp_path: Path) -> None:
    found = of(tmp_path, servers="4..5", p="0.3,0.1")
    assert found.sheets[0].header[2:] == ("p = 0.1", "p = 0.3")
    assert claims(found)["security falls as p rises"][0]


def test_nothing_is_claimed_of_numbers_that_are_not_there(tmp_path: Path) -> None:
    assert not claims(of(tmp_path, servers="4..5", p="0.1"))[
        "p < 0.1 and more than 20 servers: security is above 0.99"
    ][0]


@pytest.mark.parametrize(
    "table", [{"servers": "x"}, {"p": "2"}, {"enough": "x"}, {"beyond": "x"}, {"server": "4..5"}]
)
def test_impossible_studies_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        SecurityPlan.of(study_of("security", table))
