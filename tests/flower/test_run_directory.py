"""A Flower run's directory: what is written when, and what is read again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrfq.committee import Simulated
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.files import hash_chain, toml
from fedrfq.flower.decided_round import FILE, DecidedRound
from fedrfq.flower.messages import NodeAnswer, NodeFigures
from fedrfq.flower.run_directory import FlowerRunDirectory, RunPlan
from fedrfq.flower.sample_knowledge import DealtSamples, ReportedSamples
from fedrfq.flower.serverapp import main
from fedrfq.learning.all_classes import ALL_WAYS, PACKED_MEASURES
from fedrfq.learning.round_loop import committee_settings
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.runs.run_directory import AUDITED, RunDirectory
from support.flowers import SMALL, Nodes, context, written


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("finished")
    main(Nodes(4), context(experiment=written(folder, SMALL), out=str(folder / "out")))
    (path,) = (folder / "out").glob("*/*")
    return RunDirectory.open(path)


def loaded(run: RunDirectory) -> tuple[DecidedRound, Any]:
    """Return the run's last decided round, and the figures saved with it."""
    loaded = DecidedRound.load(run.path)
    assert loaded is not None
    return loaded


def begin(out: Path, **changes: Any) -> FlowerRunDirectory:
    """Create the directory of a run of the small experiment, with changes."""
    return FlowerRunDirectory.begin(out, plan_of(from_table(toml.merge(SMALL, changes))))


def plan_of(experiment: Experiment) -> RunPlan:
    samples = DealtSamples(experiment)
    settings = committee_settings(experiment, len(samples.dataset.classes))
    assert isinstance(experiment.committee, Simulated)
    return RunPlan(experiment, settings.task, experiment.committee.federation(settings), samples)


def figures(clients: int, accuracy: float, samples: int = 2) -> NodeFigures:
    row = np.full(clients, accuracy)
    rng = np.random.default_rng(int(accuracy))
    none = np.zeros(clients, np.int64)
    number = np.full(clients, samples)
    y_N = rng.integers(0, 10, clients * samples)
    distance_NJ = rng.random((clients * samples, 10)).astype(np.float32)
    common_KF = np.zeros((clients, 0))
    return NodeFigures(row, row, row, none, none, number, y_N, distance_NJ, common_KF)


def test_a_decided_round_is_read_as_it_was_written(finished: RunDirectory, tmp_path: Path) -> None:
    decided, known = loaded(finished)
    assert decided.round == 3
    assert sorted(decided.uploads) == sorted(decided.losses) == [0, 1, 2, 3]
    decided.save(tmp_path, known)
    again, figures = DecidedRound.load(tmp_path) or (None, None)
    assert again == decided
    assert (figures == known).all()
    replace(decided, report=None, uploads={}, losses={}, last=b"").save(tmp_path, known)
    empty, _ = DecidedRound.load(tmp_path) or (None, None)
    assert empty == replace(decided, report=None, uploads={}, losses={}, last=b"")
    assert DecidedRound.load(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("damage", ["", "cut", "other"])
def test_a_damaged_one_is_named(finished: RunDirectory, tmp_path: Path, damage: str) -> None:
    content = (finished.path / FILE).read_bytes()
    other = (finished.path / "prototypes.safetensors").read_bytes()
    (tmp_path / FILE).write_bytes({"": b"", "cut": content[:-1], "other": other}[damage])
    with pytest.raises(UserError, match=r"decided\.safetensors"):
        DecidedRound.load(tmp_path)


def test_what_is_decided_is_on_disk_after_all_before_it_and_ahead_of_its_proofs(
    finished: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, _ = loaded(finished)
    directory = begin(tmp_path)
    # The calls, and whether the decided round was on disk by then.
    calls = list[tuple[str, bool]]()

    def note(name: str, run: RunDirectory) -> None:
        calls.append((name, (run.path / FILE).is_file()))

    monkeypatch.setattr(RunDirectory, "sync", lambda run: note("sync", run))
    monkeypatch.setattr(RunDirectory, "prove", lambda run, report: note("prove", run))
    directory.certify(replace(decided, round=1))
    assert calls == [("sync", False), ("prove", True)]
    assert directory.run.rounds() == []
    assert (directory.round, directory.last) == (1, decided.last)


def test_a_client_not_heard_from_has_its_last_figures(
    finished: RunDirectory, tmp_path: Path
) -> None:
    decided, _ = loaded(finished)
    directory = begin(tmp_path)
    directory.certify(replace(decided, round=1, uploads={}))
    directory.hear(
        [NodeAnswer((0, 1), figures=figures(2, 40.0)), NodeAnswer((3,), figures=figures(1, 80.0))]
    )
    assert directory.record().accuracy_mean == (40 + 40 + 0 + 80) / 4
    directory.certify(replace(decided, round=2, uploads={}))
    directory.hear([NodeAnswer((3,), figures=figures(1, 60.0)), NodeAnswer((2,))])
    assert directory.record().accuracy_mean == (40 + 40 + 0 + 60) / 4
    again = FlowerRunDirectory.resume(directory.run.path, plan_of(directory.experiment))
    assert again.round == 2
    again.hear([])
    # These were known when the round was decided.
    assert again.record().accuracy_mean == (40 + 40 + 0 + 80) / 4


def test_figures_of_other_classes_are_not_taken(finished: RunDirectory, tmp_path: Path) -> None:
    decided, _ = loaded(finished)
    directory = begin(tmp_path)
    odd = figures(1, 80.0)
    directory.certify(replace(decided, round=1, uploads={}))
    directory.hear([NodeAnswer((0,), figures=replace(odd, distance_NJ=odd.distance_NJ[:, :3]))])
    assert directory.record().accuracy_mean == 0


def test_a_client_not_heard_from_has_no_figures_on_all_classes(
    finished: RunDirectory, tmp_path: Path
) -> None:
    """Nor has a later round those of the one before it; figures of other classes are not taken."""
    decided, _ = loaded(finished)
    directory = begin(tmp_path)
    columns = len(ALL_WAYS) * (len(PACKED_MEASURES) + 10)
    directory.certify(replace(decided, round=1, uploads={}))
    for client, accuracy, width in ((0, 40.0, columns), (1, 80.0, columns), (2, 20.0, 5)):
        known = replace(figures(1, 50.0), common_KF=np.full((1, width), accuracy))
        directory.hear([NodeAnswer((client,), figures=known)])
    record = directory.record()
    assert (record.accuracy_all, record.accuracy_all_worst) == (60, 40)
    assert record.recall == [60.0] * 10
    directory.certify(replace(decided, round=2, uploads={}))
    directory.hear([NodeAnswer((0,), figures=figures(1, 50.0))])
    assert directory.record().accuracy_all is None


def test_values_that_were_cut_are_counted(finished: RunDirectory, tmp_path: Path) -> None:
    decided, _ = loaded(finished)
    directory = begin(tmp_path)
    sent = {k: upload for k, upload in decided.uploads.items() if k != 3}
    directory.certify(replace(decided, uploads=sent))
    clipped = replace(figures(4, 50.0), saturated_K=np.array([1, 20, 300, 4000]))
    directory.hear([NodeAnswer((0, 1, 2, 3), figures=clipped)])
    # Those of the uploads that were sent.
    assert directory.record().saturated == 321


def test_prototype_failure_is_over_the_samples_of_all_nodes(
    finished: RunDirectory, tmp_path: Path
) -> None:
    decided, _ = loaded(finished)
    directory = begin(tmp_path)
    directory.certify(replace(decided, round=1, uploads={}))
    whole = figures(4, 50.0)
    parts = [
        NodeFigures(
            *(column[k : k + 1] for column in list(vars(whole).values())[:6]),
            whole.y_N[2 * k : 2 * k + 2],
            rows,
            whole.common_KF[k : k + 1],
        )
        for k, rows in enumerate(np.split(whole.distance_NJ, 4))
    ]
    directory.hear([NodeAnswer((0, 1, 2, 3), figures=whole)])
    together = directory.record().prototype_failure
    other = begin(tmp_path / "other")
    other.certify(replace(decided, round=1, uploads={}))
    other.hear([NodeAnswer((k,), figures=part) for k, part in enumerate(parts)])
    assert other.record().prototype_failure == together
    assert together is not None
    assert 0 < together < 1


@pytest.mark.parametrize("kept", [2, 3])
def test_resuming_proofs_and_records_are_those_of_what_was_decided(
    finished: RunDirectory, tmp_path: Path, kept: int
) -> None:
    copy = RunDirectory(Path(shutil.copytree(finished.path, tmp_path / "run")))
    expected = {name: (copy.path / name).read_bytes() for name in AUDITED}
    report = loaded(copy)[0].report
    assert report is not None
    for name in AUDITED:
        hash_chain.cut(copy.path / name, report.run, kept)
    directory = FlowerRunDirectory.resume(copy.path, plan_of(copy.experiment()))
    assert {name: (copy.path / name).read_bytes() for name in AUDITED} == expected
    assert len(directory.run.rounds()) == 2
    assert (directory.round, directory.last) == (3, loaded(copy)[0].last)


def test_before_anything_is_decided_a_run_begins_anew(tmp_path: Path) -> None:
    directory = begin(tmp_path)
    again = FlowerRunDirectory.resume(directory.run.path, plan_of(directory.experiment))
    assert (again.round, again.last, again.decided) == (0, b"", None)


def test_what_clients_report_stands_for_samples_that_only_they_have() -> None:
    samples = ReportedSamples(3, 4)
    assert [len(own) for own in samples.partition.test] == [1, 1, 1]
    counts = np.array([[5, 0, 2, 0], [0, 3, 0, 0]])
    samples.learn(Uploads((0, 2), counts, np.zeros((2, 4, 1), np.int64)), {0: np.array([0, 0, 2])})
    partition = samples.partition
    assert [len(own) for own in partition.train] == [7, 0, 3]
    assert [own.tolist() for own in partition.classes] == [[0, 2], [], [1]]
    assert [len(own) for own in partition.test] == [3, 1, 1]
    assert [(s.client, s.label, s.train, s.test) for s in samples.shares()] == [
        (0, 0, 5, 2),
        (0, 2, 2, 1),
        (2, 1, 3, 0),
    ]


def test_uploads_without_classes_say_nothing_and_second_moments_are_no_classes() -> None:
    samples = ReportedSamples(2, 3)
    statistics = np.array([[4, 0, 2, 6, 6], [0, 0, 5, 5, 5]])
    samples.learn(Uploads((0, 1), statistics, np.zeros((2, 5, 4), np.int64)), {})
    nothing_KJ = np.zeros((2, 3), np.int64)
    samples.learn(Uploads((0, 1), nothing_KJ, np.zeros((2, 3, 4), np.int64)), {})
    assert [len(rows) for rows in samples.partition.train] == [6, 5]


def test_what_a_client_claims_to_have_takes_no_memory() -> None:
    samples = ReportedSamples(2, 10)
    counts_KJ = np.full((1, 10), 1 << 40)
    samples.learn(Uploads((1,), counts_KJ, np.zeros((1, 10, 4), np.int64)), {})
    assert [len(rows) for rows in samples.partition.train] == [0, 10 << 40]
