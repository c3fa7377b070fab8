"""What a user sets for a run of the app (`flwr run --run-config`), and what it comes to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from fedrfq.errors import UserError, nearest
from fedrfq.experiment import load
from fedrfq.flower.committee_gateway import ByAddress, Carrier, carrier
from fedrfq.flower.run_directory import Book
from fedrfq.flower.sample_knowledge import Dealt, Reported
from fedrfq.learning.round_loop import mandate
from fedrfq.runs.run_directory import RunDirectory

Config = Mapping[str, bool | float | int | str]


@dataclass(frozen=True)
class Options:
    """Paths are relative to where the SuperLink was started, or to the app."""

    experiment: str = ""  # a TOML file; with a federation, it is that one's
    out: str = "runs"  # where run directories go
    federation: str = ""  # the folder of a courier of it; none: the committee is simulated here
    resume: str = ""  # the directory of a run to go on with
    state: str = ""  # where simulated nodes keep models; by default in the run directory
    deadline_s: float = 600.0  # how long answers are awaited
    patience_s: float = 0.0  # how long enough clients, or the committee; 0: for ever

    @staticmethod
    def of(config: Config) -> Options:
        kinds = {f.name.replace("_", "-"): type(f.default) for f in fields(Options)}
        values: dict[str, bool | float | int | str] = {}
        for key, value in config.items():
            if key not in kinds:
                raise UserError(
                    f"the app has no setting {key}{nearest(key, kinds)}; it has {', '.join(kinds)}"
                )
            kind = kinds[key]
            if isinstance(value, bool) or not isinstance(
                value, str if kind is str else int | float
            ):
                raise UserError(
                    f"{key} is {'a text' if kind is str else 'a number'}, not {value!r}"
                )
            values[key.replace("-", "_")] = value
        found = Options(**values)  # type: ignore[arg-type]
        if found.deadline_s <= 0 or found.patience_s < 0:
            raise UserError(
                "deadline-s is more than 0 seconds, and patience-s 0 (for ever) or more"
            )
        return found


def opened(options: Options) -> tuple[Book, Carrier]:
    """The run's book, from its first round or from where it stands, and the way to its committee."""
    return _away(options) if options.federation else _here(options)


def _here(options: Options) -> tuple[Book, Carrier]:
    if options.resume:
        experiment = RunDirectory.open(Path(options.resume)).experiment()
    elif options.experiment:
        experiment = load(_found(options.experiment))
    else:
        raise UserError(
            "no experiment: --run-config \"experiment='FILE.toml'\"; `fedrfq config > FILE.toml` writes one"
        )
    ground = Dealt(experiment)
    asked = mandate(experiment, len(ground.dataset.classes))
    way = carrier(experiment, asked)
    if options.resume:
        return Book.resume(Path(options.resume), experiment, asked.task, way.charter, ground), way
    return Book.begin(Path(options.out), experiment, asked.task, way.charter, ground), way


def _away(options: Options) -> tuple[Book, Carrier]:
    way = ByAddress(Path(options.federation), options.patience_s)
    charter, experiment = way.charter, way.experiment
    ground = Reported(experiment.clients, charter.task.classes)
    if not options.resume:
        way.check(0)
        return Book.begin(Path(options.out), experiment, charter.task, charter, ground), way
    book = Book.resume(Path(options.resume), experiment, charter.task, charter, ground)
    way.check(book.round)
    return book, way


def _found(name: str) -> Path:
    """The file, or one of this name that came with the app."""
    places = [Path(), *(Path(place) for place in sys.path)]
    return next((place / name for place in places if (place / name).is_file()), Path(name))
