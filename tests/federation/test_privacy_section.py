"""[privacy] in federation.toml: agreed on, part of the run's id, and absent where it was."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from fedrfq.committee import Simulated
from fedrfq.errors import UserError
from fedrfq.federation.application import Memory
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.public_task import PublicTask
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import Globals, Uploads, encode
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
    # The last one came later, and files from before it are as they were.
    assert names == [field.name for field in fields(Privacy)][:-1]
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


WITH_PROTOTYPES = replace(PRIVATE, privacy=Privacy(noise=2.0, prototype_norm=3.0))


def test_noise_in_prototypes_is_agreed_on_too() -> None:
    text = federation(WITH_PROTOTYPES).text
    assert "prototype_norm = 3.0" in text
    assert Federation.read(text, "here").task.public == WITH_PROTOTYPES


@pytest.mark.parametrize(
    ("norm", "why"), [("3", "= 3"), ("-1.0", "must be 0 to"), ("0.01", "is too fine for")]
)
def test_an_impossible_norm_of_prototypes_is_refused(norm: str, why: str) -> None:
    text = federation(WITH_PROTOTYPES).text
    with pytest.raises(UserError, match=why):
        Federation.read(text.replace("prototype_norm = 3.0", f"prototype_norm = {norm}"), "here")


def test_servers_refuse_prototypes_that_noise_does_not_explain() -> None:
    task = some_settings(public=WITH_PROTOTYPES).task
    without = some_settings(public=PRIVATE).task
    round_ = next(n for n in range(1, 9) if not WITH_PROTOTYPES.due(n))
    for value, refused in ((1 << 12, False), ((1 << 20) - 1, True)):
        counts_J = np.eye(task.classes, dtype=np.int64)[0] * 5
        values_JV = counts_J[:, None] // 5 * np.full((1, task.values), value)
        content = encode(round_, 0, counts_J, values_JV, task.precision)
        assert (task.form(round_).refuses(round_, 0, content) is not None) == refused
        assert without.form(round_).refuses(round_, 0, content) is None


@pytest.mark.parametrize("public", [PRIVATE, WITH_PROTOTYPES])
def test_servers_tell_their_detector_of_the_noise(public: PublicTask) -> None:
    """Messages do not say how much noise is in them, so the task does."""
    seen = []

    @dataclass(frozen=True)
    class Watching(NoDetection):
        def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
            seen.append(uploads.noise)
            return super().judge(state, globals_, uploads)

    asked = some_settings(detector=Watching(), public=public)
    task = asked.task
    before = Memory(task.start_state(), Globals.none(task.classes, task.values))
    prototypes = next(n for n in range(1, 9) if not public.due(n))
    for round_ in (1, prototypes):
        task.decide(round_, before, uploads_of(asked, round_))
    assert seen == [PRIVATE.noise, task.noise]
    assert (task.noise is None) == (public is PRIVATE)
