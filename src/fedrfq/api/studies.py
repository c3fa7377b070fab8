"""`fedrfq.compare`, `robustness` and `reproduce`: a study from Python, with its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrfq.api.progress import StudyBars
from fedrfq.api.run import with_given
from fedrfq.data import Dataset
from fedrfq.paper.kinds import plan
from fedrfq.plugins import check_not_loading
from fedrfq.runs import columns
from fedrfq.runs.session import pick_device
from fedrfq.studies.carry_out import Training, Watcher, carry_out
from fedrfq.studies.plan import StudyResult
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
    progress: bool = False,
) -> StudyTables:
    """Compare methods, as `fedrfq compare` does with the file or dict of a study.

    `data` and `model` are those of all runs, as `fedrfq.run` takes them. First, each method's λ is
    chosen, and methods that exchange nothing are trained as well: "tune": [] and
    "controls": False in the study leave that out.
    """
    study = Study.load(source, kind="compare")
    return _carried_out("compare", study, device, out, data, model, progress=progress)


def robustness(
    source: StudySource,
    device: str = "auto",
    out: Path | str = "runs",
    *,
    data: Dataset | None = None,
    model: Any = None,
    progress: bool = False,
) -> StudyTables:
    """Test detectors against attacks, as `fedrfq robustness` does with a study.

    `data` and `model` are those of all runs, as `fedrfq.run` takes them.
    """
    study = Study.load(source, kind="robustness")
    return _carried_out("robustness", study, device, out, data, model, progress=progress)


def reproduce(
    source: StudySource,
    device: str = "auto",
    out: Path | str = "runs",
    *,
    quick: bool = False,
    progress: bool = False,
) -> StudyTables:
    """Carry out a study of the paper, such as "table1", as `fedrfq reproduce` does."""
    study = Study.load(source, quick)
    return _carried_out("reproduce", study, device, out, models=False, progress=progress)


def _carried_out(
    command: str,
    study: Study,
    device: str,
    out: Path | str,
    data: Dataset | None = None,
    model: Any = None,
    *,
    models: bool = True,
    progress: bool,
) -> StudyTables:
    """Train what is missing and write the tables; the same call goes on after an interrupt."""
    check_not_loading()
    if data is not None or model is not None:
        common, data = with_given(section(study.table, "experiment"), data, model)
        study = replace(study, table={**study.table, "experiment": common})
    watcher = StudyBars() if progress else Watcher()
    training = Training(
        Path(out), pick_device(device), models=models, dataset=data, watcher=watcher
    )
    folder = training.out / study.name
    result = carry_out(plan(study), training, folder, f"fedrfq.{command} in Python")
    return StudyTables(folder, result)
