"""`fedrfq.compare`, `robustness` and `reproduce`: a study from Python, with its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedrfq.experiment import Experiment
from fedrfq.files.atomic import reporting_write_errors
from fedrfq.paper.kinds import plan
from fedrfq.runs import columns
from fedrfq.runs.session import pick_device
from fedrfq.studies.grid import MAX_CLIENTS, EndedRun, Grid, locked
from fedrfq.studies.plan import StudyResult
from fedrfq.studies.provenance import provenance
from fedrfq.studies.sheets import write
from fedrfq.studies.study import Study

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


def compare(source: StudySource, device: str = "auto", out: Path | str = "runs") -> StudyTables:
    """Compare methods, as `fedrfq compare` does with the file or dict of a study."""
    return _carried_out(Study.load(source, kind="compare"), "compare", device, Path(out))


def robustness(source: StudySource, device: str = "auto", out: Path | str = "runs") -> StudyTables:
    """Test detectors against attacks, as `fedrfq robustness` does with a study."""
    return _carried_out(Study.load(source, kind="robustness"), "robustness", device, Path(out))


def reproduce(
    source: StudySource, device: str = "auto", out: Path | str = "runs", *, quick: bool = False
) -> StudyTables:
    """Carry out a study of the paper, such as "table1", as `fedrfq reproduce` does."""
    return _carried_out(Study.load(source, quick), "reproduce", device, Path(out))


def _carried_out(study: Study, command: str, device: str, out: Path) -> StudyTables:
    """Train what is missing and write the tables; the same call goes on after an interrupt."""
    where = pick_device(device)
    wanted = plan(study)
    if wanted.before:
        wanted = wanted.after(_trained(wanted.before, out, where, keep=False))
    ended: dict[str, EndedRun] = {}
    if wanted.experiments:
        ended = _trained(wanted.experiments, out, where, keep=wanted.keep)
    folder = out / study.name
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    result = wanted.show(ended, folder, where, lambda share, what: None)
    made = provenance(f"fedrfq.{command} in Python", [end.run for end in ended.values()])
    write(folder, study.title, result.sheets, {**result.whole, "made": made}, result.rows)
    return StudyTables(folder, result)


def _trained(
    experiments: Sequence[Experiment], out: Path, device: torch.device, *, keep: bool
) -> dict[str, EndedRun]:
    """Train all experiments that have not ended, and return them all by their hashes."""
    with locked(out / experiments[0].name):
        grid = Grid(experiments, out, device, MAX_CLIENTS[device.type], keep)
        try:
            for _ in grid.advance():
                pass
        except KeyboardInterrupt:
            grid.checkpoint()
            raise
        return grid.ended
