"""federation.toml names the version by which servers decide; a program has one version alone."""

from __future__ import annotations

import asyncio
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrfq.committee import Simulated
from fedrfq.consensus.events import Outcome
from fedrfq.errors import UserError
from fedrfq.federation import codec, decisions
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import inherited_by
from fedrfq.node.membership import identity, joining
from fedrfq.node.membership.change import changed, differences
from fedrfq.node.server import ServerOptions, serve
from support.command import fedrfq
from support.committees import written
from support.federations import PATIENCE_S
from support.parties import founded

OURS = decisions.VERSION
NEXT = OURS + 1


def of_another_version(federation: Federation, folder: Path) -> None:
    """Let a party's file name the next version."""
    (folder / "federation.toml").write_text(replace(federation, decisions=NEXT).text)


def test_the_version_is_part_of_the_file_and_of_the_run(tmp_path: Path) -> None:
    federation = founded(tmp_path)
    assert tomllib.loads(federation.text)["decisions"] == OURS
    other = replace(federation, decisions=NEXT)
    assert Federation.read(other.text, "here") == other
    assert other.roster.run != federation.roster.run
    without = federation.text.replace(f"decisions = {OURS}\n", "")
    for text in (without, other.text.replace(f"decisions = {NEXT}", "decisions = 0")):
        with pytest.raises(UserError, match=r"decisions.*use the version of this program that"):
            Federation.read(text, "here")


def test_a_server_of_another_version_does_not_start_and_a_client_goes_on(tmp_path: Path) -> None:
    federation = founded(tmp_path)
    for name in ("server-0", "client-0"):
        of_another_version(federation, tmp_path / name)
    refused = f"names version {NEXT} of the decisions, but this program decides by version {OURS}"
    own = identity.load(tmp_path / "server-0")
    with pytest.raises(UserError, match=f"{refused}: use the release of fedrfq that decides by"):
        asyncio.run(asyncio.wait_for(serve(own, ServerOptions()), PATIENCE_S))
    for name, is_said in (("server-0", True), ("client-0", False)):
        said = fedrfq("doctor", tmp_path / name, "--timeout", 0.1, expect=1).stdout
        assert (refused in " ".join(said.replace("│", " ").split())) is is_said


def test_whoever_joins_is_told_before_it_agrees(tmp_path: Path) -> None:
    federation = founded(tmp_path)
    of_another_version(federation, tmp_path)
    with pytest.raises(UserError, match=f"names version {NEXT} of the decisions"):
        joining.await_federation(tmp_path / "server-0", tmp_path)
    own = joining.await_federation(tmp_path / "client-0", tmp_path)
    assert f"by version {NEXT} of the decisions" in " ".join(joining.terms(own.federation))


def test_a_server_that_is_ahead_is_told_how_all_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "VERSION", NEXT)
    with pytest.raises(UserError, match=f"change DIR --decisions {NEXT}` lets all go on"):
        decisions.check_server(OURS, "federation.toml")
    with pytest.raises(UserError, match=r"use the release of fedrfq that decides by version 9$"):
        decisions.check_server(9, "federation.toml")


def test_only_the_release_that_has_a_version_can_change_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = founded(tmp_path)
    with pytest.raises(UserError, match=f"release of fedrfq that decides by version {NEXT}"):
        changed(federation, decisions=NEXT)
    monkeypatch.setattr(decisions, "VERSION", NEXT)
    new = changed(federation, decisions=NEXT)
    monkeypatch.undo()
    # The servers of the release before can read and approve it.
    (line,) = differences(federation, Federation.read(new.text, "here"))
    assert f"decisions: version {OURS} -> {NEXT}" in line
    assert f"stop and need the release of fedrfq that decides by version {NEXT}" in line


def test_another_version_keeps_prototypes_and_forgets_what_detector_and_rule_remembered(
    tmp_path: Path,
) -> None:
    old = founded(tmp_path)
    state = {name: array + 7 for name, array in old.task.start_state().items()}
    outcome = Outcome(b"globals", b"verdicts", codec.encode_state(state), b"public")
    same, other = (
        inherited_by(old, outcome, replace(old, decisions=version)) for version in (OURS, NEXT)
    )
    assert same.state == outcome.state
    assert other == (b"globals", b"", codec.encode_state(old.task.start_state()), b"public", b"")
    assert all(np.any(array) for array in state.values())


def test_what_another_version_decided_is_verified_and_not_computed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path / "run", Simulated(4))
    fedrfq("verify", run, "--recompute")
    monkeypatch.setattr(decisions, "VERSION", NEXT)
    done = fedrfq("verify", run, "--recompute", expect=3)
    assert "is verified" in done.stdout
    assert "recomputed" not in done.stdout
    assert f"is of version {OURS} of the decisions" in done.stderr
    assert "for want of uploads" not in done.stderr
    fedrfq("verify", run)
