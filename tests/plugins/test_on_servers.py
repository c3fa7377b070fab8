"""Plugins of a real federation: processes, TLS, a detector and a module of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.files import toml
from fedrfq.models import any_module
from support.command import fedrfq as command
from support.command import sets
from support.outside import LARGEST, new_process, written

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU())
        self.decide = nn.Linear(24, classes)

    def forward(self, x):
        return self.decide(self.body(x))
"""
SETTINGS = [
    *("detector.name=largest", "method.name=fedproto", "seed=0"),
    *("partition.shots=4", "partition.test_shots=3"),
]


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a federation that has run a round with the plugin and the module."""
    written(tmp_path, "largest.py", LARGEST)
    written(tmp_path, "own_nets.py", NET)
    monkeypatch.chdir(tmp_path)
    table = command(
        *("config", "--plugin", "largest.py", "--module", "own_nets:Net", *sets(SETTINGS))
    ).stdout
    written(tmp_path, "mine.toml", table)
    folder = tmp_path / "federation"
    size = ("--servers", 4, "--clients", 2, "--rounds", 1)
    given = ("--plugin", "largest.py", "--module", "own_nets:Net")
    said = command("local-cluster", folder, *size, "--experiment", "mine.toml", *given).stdout
    assert "6 logs are verified and agree" in said
    new_process()
    return folder


def test_the_plugin_is_agreed_on_and_needed_by_servers_and_auditors(
    federation: Path, tmp_path: Path
) -> None:
    server = federation / "server-0"
    recorded = toml.strict((server / "federation.toml").read_text())["network"]["experiment"]
    (row,) = toml.strict(recorded)["plugins"]
    assert row["name"] == "largest.py"
    # Remembered on this machine, so no option is needed.
    said = command("verify", server, "--recompute").stdout
    assert "recomputed" in said
    # As on another machine.
    shutil.rmtree(tmp_path / "config")
    for words in (["server", server], ["verify", server, "--recompute"]):
        new_process()
        error = command(*words, expect=2).stderr
        assert f"needs the plugin largest.py (sha256 {row['sha256'][:12]}…)" in error
        assert "give it with --plugin largest.py" in error
    changed = written(tmp_path, "largest.py", LARGEST + "# changed\n")
    for words in (["server", server], ["verify", server, "--recompute"]):
        new_process()
        error = command(*words, "--plugin", changed, expect=2).stderr
        assert "largest.py is not what this run began with" in error
    new_process()
    again = written(tmp_path, "largest.py", LARGEST)
    assert "recomputed" in command("verify", server, "--recompute", "--plugin", again).stdout
    # A client without its module says what to give.
    new_process()
    any_module._GIVEN.clear()
    words = ("client", federation / "client-0", "--data", "mnist5k", "--plugin", again)
    error = command(*words, expect=2).stderr
    assert "give it with --module own_nets:Net" in error
    # A plugin that the experiment does not name is nobody's agreement.
    text = (server / "federation.toml").read_text()
    without = text.replace("[[plugins]]", "[[others]]")
    assert without != text
    with pytest.raises(
        UserError, match=r"of the plugin largest\.py, which the experiment does not"
    ):
        Federation.read(without, "federation.toml")


def test_a_float_rule_is_refused_for_a_committee_though_it_calls_itself_exact(
    tmp_path: Path,
) -> None:
    text = LARGEST.replace("uploads.counts_KJ.sum(1)", "(uploads.counts_KJ.sum(1) / 2).astype(int)")
    path = written(tmp_path, "halves.py", text)
    settings = sets(["detector.name=largest", "committee.name=simulated"])
    error = command("config", "--plugin", path, *settings, expect=2).stderr
    assert "Largest calls itself exact, but halves.py, line 13: / divides" in error
    new_process()
    command("config", "--plugin", path, *sets(["detector.name=largest"]))
    new_process()
    folder = tmp_path / "federation"
    words = ("local-cluster", folder, "--plugin", path)
    table = command("config", "--plugin", path, *sets(["detector.name=largest"])).stdout
    file = written(tmp_path, "mine.toml", table)
    error = command(*words, "--experiment", file, expect=2).stderr
    assert "calls itself exact" in error
