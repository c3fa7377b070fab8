"""`fedrfq.compare`, `robustness` and `reproduce`: a study from Python, with its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedrfq.api.run import with_given
from fedrfq.data import Dataset
from fedrfq.experiment import Experiment
from fedrfq.files.atomic import reporting_write_errors
from fedrfq.paper.kinds import plan
from fedrfq.runs import columns
from fedrfq.runs.session import pick_device
from fedrfq.studies.grid import MAX_CLIENTS, EndedRun, Grid, locked
from fedrfq.studies.plan import StudyResult
from fedrfq.studies.provenance import provenance
from fedrfq.studies.sheets import write
from fedrfq.studies.study import Study, section

StudySource = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class StudyTables:
    """A study that has been carried out: its tables lie in `path`, its runs beside that."""

    path: Path
    result: StudyResult

    @property
    def table(self) -> Any:
        """A row for each cell of the study: a DataFrame, or a dict of columns without pandas."""
        return columns.table(list(self.result.rows))

    def __repr__(self) -> str:
        return "\n".join(sheet.markdown() for sheet in self.result.sheets)

    def _repr_markdown_(self) -> str:
        # What a notebook shows.
        return repr(self)


def compare(
    source: StudySource,
    device: str = "auto",
    out: Path | str = "runs",
    *,
    data: Dataset | None = None,
    model: Any = None,
) -> StudyTables:
    """Compare methods, as `fedrfq compare` does with the file or dict of a study.

    `data` and `model` are those of all runs, as `fedrfq.run` takes them.
    """
    study, data = _with_given(Study.load(source, kind="compare"), data, model)
    return _carried_out(study, "compare", device, Path(out), data, models=True)


def robustness(
    source: StudySource,
    device: str = "auto",
    out: Path | str = "runs",
    *,
    data: Dataset | None = None,
    model: Any = None,
) -> StudyTables:
    """Test detectors against attacks, as `fedrfq robustness` does with a study.

    `data` and `model` are those of all runs, as `fedrfq.run` takes them.
    """
    study, data = _with_given(Study.load(source, kind="robustness"), data, model)
    return _carried_out(study, "robustness", device, Path(out), data, models=True)


def reproduce(
    source: StudySource, device: str = "auto", out: Path | str = "runs", *, quick: bool = False
) -> StudyTables:
    """Carry out a study of the paper, such as "table1", as `fedrfq reproduce` does."""
    return _carried_out(Study.load(source, quick), "reproduce", device, Path(out))


def _with_given(study: Study, data: Dataset | None, model: Any) -> tuple[Study, Dataset | None]:
    """Return the study with the data and model of all its runs, and the data."""
    if data is None and model is None:
        return study, None
    common, data = with_given(section(study.table, "experiment"), data, model)
    return replace(study, table={**study.table, "experiment": common}), data


def _carried_out(
    study: Study,
    command: str,
    device: str,
    out: Path,
    data: Dataset | None = None,
    *,
    models: bool = False,
) -> StudyTables:
    """Train what is missing and write the tables; the same call goes on after an interrupt.

    Trained models are kept if `models` is true, and where the kind of the study needs them.
    """
    where = pick_device(device)
    wanted = plan(study)
    if wanted.before:
        wanted = wanted.after(_trained(wanted.before, out, where, data, keep=False))
    ended: dict[str, EndedRun] = {}
    if wanted.experiments:
        ended = _trained(wanted.experiments, out, where, data, keep=models or wanted.keep)
    folder = out / study.name
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    result = wanted.show(ended, folder, where, lambda share, what: None)
    made = provenance(f"fedrfq.{command} in Python", [end.run for end in ended.values()])
    write(folder, study.title, result.sheets, {**result.whole, "made": made}, result.rows)
    return StudyTables(folder, result)


def _trained(
    experiments: Sequence[Experiment],
    out: Path,
    device: torch.device,
    data: Dataset | None,
    *,
    keep: bool,
) -> dict[str, EndedRun]:
    """Train all experiments that have not ended, and return them all by their hashes."""
    with locked(out / experiments[0].name):
        grid = Grid(experiments, out, device, MAX_CLIENTS[device.type], keep, dataset=data)
        try:
            for _ in grid.advance():
                pass
        except KeyboardInterrupt:
            grid.checkpoint()
            raise
        return grid.ended
