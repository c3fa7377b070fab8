"""What a user sets for a run of the app (`flwr run --run-config`), and what it comes to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from fedrfq.errors import UserError, nearest
from fedrfq.experiment import load
from fedrfq.flower.committee_gateway import CommitteeGateway, NetworkGateway, gateway
from fedrfq.flower.run_directory import FlowerRunDirectory
from fedrfq.flower.sample_knowledge import DealtSamples, ReportedSamples
from fedrfq.learning.round_loop import mandate
from fedrfq.runs.run_directory import RunDirectory

Config = Mapping[str, bool | float | int | str]


@dataclass(frozen=True)
class AppOptions:
    """Paths are relative to where the SuperLink was started, or to the app."""

    experiment: str = ""  # a TOML file; with a federation, it is that one's
    out: str = "runs"  # where run directories go
    federation: str = ""  # the folder of a courier of it; none: the committee is simulated here
    resume: str = ""  # the directory of a run to go on with
    state: str = ""  # where simulated nodes keep models; by default in the run directory
    deadline_s: float = 600.0  # how long answers are awaited
    patience_s: float = 0.0  # how long enough clients, or the committee; 0: for ever

    @staticmethod
    def of(config: Config) -> AppOptions:
        kinds = {f.name.replace("_", "-"): type(f.default) for f in fields(AppOptions)}
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
        found = AppOptions(**values)  # type: ignore[arg-type]
        if found.deadline_s <= 0 or found.patience_s < 0:
            raise UserError(
                "deadline-s is more than 0 seconds, and patience-s 0 (for ever) or more"
            )
        return found


def opened(options: AppOptions) -> tuple[FlowerRunDirectory, CommitteeGateway]:
    """The run's book, from its first round or from where it stands, and the way to its committee."""
    if options.federation:
        return _away(options)
    return _here(options)


def _here(options: AppOptions) -> tuple[FlowerRunDirectory, CommitteeGateway]:
    if options.resume:
        experiment = RunDirectory.open(Path(options.resume)).experiment()
    elif options.experiment:
        experiment = load(_found(options.experiment))
    else:
        raise UserError(
            "no experiment: --run-config \"experiment='FILE.toml'\"; `fedrfq config > FILE.toml` writes one"
        )
    ground = DealtSamples(experiment)
    asked = mandate(experiment, len(ground.dataset.classes))
    way = gateway(experiment, asked)
    if options.resume:
        return FlowerRunDirectory.resume(
            Path(options.resume), experiment, asked.task, way.federation, ground
        ), way
    return FlowerRunDirectory.begin(
        Path(options.out), experiment, asked.task, way.federation, ground
    ), way


def _away(options: AppOptions) -> tuple[FlowerRunDirectory, CommitteeGateway]:
    way = NetworkGateway(Path(options.federation), options.patience_s)
    federation = way.federation
    experiment = way.experiment
    ground = ReportedSamples(experiment.clients, federation.task.classes)
    if not options.resume:
        way.check(0)
        return FlowerRunDirectory.begin(
            Path(options.out), experiment, federation.task, federation, ground
        ), way
    book = FlowerRunDirectory.resume(
        Path(options.resume), experiment, federation.task, federation, ground
    )
    way.check(book.round)
    return book, way


def _found(name: str) -> Path:
    """The file, or one of this name that came with the app."""
    places = [Path(), *(Path(place) for place in sys.path)]
    return next((place / name for place in places if (place / name).is_file()), Path(name))
