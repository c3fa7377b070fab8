"""`fedrfq.run` and `fedrfq.resume`: a run that Python code starts, follows, stops and looks at."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from fedrfq.api.progress import ProgressBar
from fedrfq.data import Dataset, load
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.experiment.reading import data_name, with_data
from fedrfq.files import toml
from fedrfq.files.toml import Table
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.plugins import check_not_loading
from fedrfq.runs.callbacks import Callback
from fedrfq.runs.find_runs import named
from fedrfq.runs.given_modules import give_again, given_by_name, with_modules
from fedrfq.runs.inference import DataFacts
from fedrfq.runs.recorded_run import RecordedRun
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session, pick_device

Source = str | Path | Mapping[str, Any] | Experiment


class Run(RecordedRun):
    """A run to iterate over: each step trains a round and gives its record.

    Leaving the loop early, by `break`, an exception or Ctrl-C, leaves a checkpoint and a result;
    another loop goes on from there. In between, other processes may use the run's directory.
    """

    def __init__(
        self,
        directory: RunDirectory,
        session: Session | None = None,
        *,
        data: Dataset | None = None,
        device: str = "auto",
        callbacks: Iterable[Callback] = (),
    ) -> None:
        super().__init__(directory)
        self._session = session
        self._data = data
        self._device = device
        self._callbacks = tuple(callbacks)

    def __iter__(self) -> Iterator[RoundRecord]:
        session = self._opened()
        self._stopping = False
        status = "failed"
        ending = partial(self._stop_at_exit, session)
        atexit.register(ending)
        try:
            for outcomes in session.advance():
                yield outcomes[0].record
                if self._stopping:
                    break
            status = "ended"
        # What ends a loop from outside: `break`, and Ctrl-C.
        except (GeneratorExit, KeyboardInterrupt):
            status = "ended"
            raise
        finally:
            atexit.unregister(ending)
            self._leave(session, status)

    def finish(self) -> dict[str, Any] | None:
        """Train all rounds that are left and return the result."""
        for _ in self:
            pass
        return self.result

    def report(self, out: Path | str | None = None) -> Path:
        """Write the run as one HTML page and return its path: report.html in the directory."""
        from fedrfq.report import run_page
        from fedrfq.report.write import write

        target = Path(out or self.path / "report.html")
        write(lambda: run_page.page(self.path), target)
        return target

    def _newest(self) -> RunDirectory:
        """Return the directory, with a checkpoint of the last round also inside a loop."""
        session = self._session
        if session is None:
            return self.directory
        if not session.state.round:
            raise UserError(
                f"{self.path} has trained no round yet: iterate over the run, or call run.finish()"
            )
        if session.state.round not in self.directory.checkpoints():
            session.checkpoint()
        return self.directory

    def _opened(self) -> Session:
        """Return the session of a fresh run, or a new one that goes on from the checkpoint."""
        if self._session is None:
            device = pick_device(self._device)
            self._session = Session.resume(self.path, device, self._data, self._callbacks)
        if len(self._session.runs) > 1:
            self._session.close()
            raise UserError(
                f"{self.path} was trained side by side with other runs, and must be continued "
                f"with them: fedrfq resume {self.path}"
            )
        self._session.seen = (self,)
        return self._session

    def _stop_at_exit(self, session: Session) -> None:
        """Leave a checkpoint as the program ends, with a loop that somebody still holds.

        Python would leave the loop only after this, when hardly anything works any more.
        """
        self._session = None
        with closing(session):
            session.stop()

    def _leave(self, session: Session, status: str) -> None:
        """Leave the run so that it can be looked at, continued, or used by another process."""
        if self._session is not session:
            return
        self._session = None
        try:
            if status == "failed":
                return
            if session.state.round == session.rounds:
                session.finish()
                return
            session.stop()
            if session.state.round:
                session.save_result_so_far()
        finally:
            session.close()


def run(
    source: Source = "",
    device: str = "auto",
    out: Path | str = "runs",
    *,
    data: Dataset | None = None,
    model: Any = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
) -> Run:
    """Start an experiment and return its run, which trains as it is iterated over.

    `source` is the path of a TOML file, a table of settings as a dict, or an `Experiment`; without
    one it is the default experiment. `data` replaces what `data.name` would load. `model` is an
    `nn.Module` or, so that every client starts from its own random weights, its class or a function
    that makes one; or a dict of several, which cohorts name by `source`. The run directory is
    created in `out`, as by `fedrfq run`.
    """
    check_not_loading()
    experiment, data = resolved(source, data, model)
    told = _with_progress(callbacks, progress)
    # Absolute, here and below: the program may go to another folder meanwhile.
    session = Session.begin([experiment], pick_device(device), Path(out).absolute(), data, told)
    return Run(session.runs[0], session, data=data, device=device, callbacks=told)


def resume(
    path: Path | str,
    device: str = "auto",
    *,
    data: Dataset | None = None,
    model: Any = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
) -> Run:
    """Return the run in a directory, finished or not, to look at or to go on with.

    "latest" is the newest run in runs/. `data` and `model` must be given where the run began with
    ones that were given; they must be the same.
    """
    check_not_loading()
    directory = RunDirectory.open(named(Path(path)).absolute())
    if model is not None:
        facts = DataFacts.of(directory)
        given = given_by_name(model)
        give_again(directory.experiment(), given, facts.shape, len(facts.classes))
    told = _with_progress(callbacks, progress)
    return Run(directory, data=data, device=device, callbacks=told)


def resolved(
    source: Source, data: Dataset | None, model: Any = None
) -> tuple[Experiment, Dataset | None]:
    """Return the experiment of a source, with the given data and model, and the data."""
    if isinstance(source, Experiment) and data is None and model is None:
        return source, None
    table, data = with_given(_table(source), data, model)
    return from_table(table), data


def with_given(table: Table, data: Dataset | None, model: Any) -> tuple[Table, Dataset | None]:
    """Return an experiment's table with the given data and model, and the data.

    The data are loaded if the model must be tried on them.
    """
    if data is not None and not isinstance(data, Dataset):
        raise UserError(
            f"data: expected a fedrfq.Dataset, found {type(data).__name__}; make one with "
            "fedrfq.Dataset.from_arrays(x, y)"
        )
    if data is not None:
        table = with_data(table, data.source)
    if model is not None:
        data = data or load(data_name(table))
        table = with_modules(table, given_by_name(model), data.shape, len(data.classes))
    return table, data


def _table(source: Source) -> Table:
    if isinstance(source, Experiment):
        return source.table()
    if isinstance(source, Mapping):
        return dict(source)
    if not isinstance(source, str | Path):
        raise UserError(
            "source: expected the path of a TOML file, a dict or an Experiment, "
            f"found {source!r:.80}"
        )
    if source == "":
        return {}
    return toml.read(Path(source))


def _with_progress(callbacks: Iterable[Callback], progress: bool) -> list[Callback]:
    if isinstance(callbacks, Callback):
        raise UserError("callbacks: expected a list, found one callback; give [callback]")
    told = list(callbacks)
    for callback in told:
        if not isinstance(callback, Callback):
            raise UserError(
                "callbacks: expected objects of subclasses of fedrfq.Callback, such as "
                f"[MyCallback()], found {callback!r:.80}"
            )
    if progress:
        told.append(ProgressBar())
    return told
