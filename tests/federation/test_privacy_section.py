"""[privacy] in federation.toml: agreed on, part of the run's id, and absent where it was."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from fedrfq.committee import Simulated
from fedrfq.errors import UserError
from fedrfq.federation.application import Memory
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.public_task import PublicTask
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.detectors import State, Verdict
from fedrfq.robust.detectors.none import NoDetection
from support.committees import PUBLIC, some_settings
from support.committees import uploads as uploads_of

PRIVATE = replace(PUBLIC, moments=0, privacy=Privacy(noise=2.0, budget=4.0))


def federation(public: PublicTask) -> Federation:
    return Simulated().federation(some_settings(public=public))


def test_the_file_names_every_setting_and_is_as_before_without() -> None:
    text = federation(PRIVATE).text
    section = text.split("[privacy]\n")[1].split("\n\n")[0]
    names = [line.split(" = ")[0] for line in section.splitlines()]
    assert names == [field.name for field in fields(Privacy)]
    before = federation(replace(PRIVATE, privacy=None))
    assert text.replace(f"[privacy]\n{section}\n\n", "") == before.text
    assert Federation.read(text, "here").task.public == PRIVATE
    assert federation(PRIVATE).roster.run != before.roster.run


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("noise = 2.0", "noise = 2"),
        ("noise = 2.0", "noise = -2.0"),
        ("noise = 2.0", "noise = nan"),
        ("noise = 2.0", "noise = 0.0"),
        ("noise = 2.0\n", ""),
        ("noise = 2.0", "noise = 2.0\nmore = 1"),
        ("delta = 1e-05", "delta = 1.0"),
        ('unit = "sample"', 'unit = "group"'),
        ('unit = "sample"', "unit = 1"),
        ("samples = 0", "samples = true"),
        ("count_share = 0.1", "count_share = 1.5"),
        ("moments = 0", "moments = 2"),
        ("norm = 2.0", "norm = 0.001"),
    ],
)
def test_an_impossible_section_is_refused(old: str, new: str) -> None:
    text = federation(PRIVATE).text
    assert text.count(old) == 1
    with pytest.raises(UserError):
        Federation.read(text.replace(old, new), "here")


def test_noise_without_statistics_is_refused() -> None:
    text = federation(PRIVATE).text
    start = text.index("[public]")
    with pytest.raises(UserError, match="there is nothing to add noise to"):
        Federation.read(text[:start] + text[text.index("[privacy]") :], "here")


def test_servers_allow_for_the_noise() -> None:
    assert PRIVATE.bound.noise == PRIVATE.noise
    assert not PRIVATE.bound.all_classes
    everything = replace(PRIVATE, privacy=Privacy(noise=2.0, classes="all"))
    assert everything.bound.all_classes


def test_servers_tell_their_detector_of_the_noise() -> None:
    """Messages do not say how much noise is in them, so the task does."""
    seen = []

    @dataclass(frozen=True)
    class Watching(NoDetection):
        def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
            seen.append(uploads.noise)
            return super().judge(state, globals_, uploads)

    asked = some_settings(detector=Watching(), public=PRIVATE)
    task = asked.task
    before = Memory(task.start_state(), Globals.none(task.classes, task.values))
    task.decide(1, before, uploads_of(asked, 1))
    assert seen == [PRIVATE.noise]
