"""The app's settings (`flwr run --run-config`), and the run that they describe."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from fedrfq.errors import UserError, did_you_mean
from fedrfq.experiment import load
from fedrfq.flower.committee_gateway import CommitteeGateway, NetworkGateway, gateway
from fedrfq.flower.run_directory import FlowerRunDirectory, RunPlan
from fedrfq.flower.sample_knowledge import DealtSamples, ReportedSamples
from fedrfq.learning.round_loop import committee_settings
from fedrfq.runs.run_directory import RunDirectory

Config = Mapping[str, bool | float | int | str]
_KIND_NAMES = {str: "a text", float: "a number"}


@dataclass(frozen=True)
class AppOptions:
    """The settings of a run; paths are relative to the SuperLink's directory, or to the app."""

    experiment: str = ""  # a TOML file; not used with a federation, which has its own
    out: str = "runs"  # where run directories go
    federation: str = ""  # the folder of one of its couriers; empty: the committee is simulated
    resume: str = ""  # the directory of a run to continue
    state: str = ""  # where simulated nodes keep their models; empty: in the run directory
    deadline_s: float = 600.0  # how long to wait for answers
    patience_s: float = 0.0  # how long to wait for enough clients, or the committee; 0: for ever

    @staticmethod
    def of(config: Config) -> AppOptions:
        """Check and return the settings; raise a UserError for one that is unknown or invalid."""
        kinds = {field.name.replace("_", "-"): type(field.default) for field in fields(AppOptions)}
        values: dict[str, bool | float | int | str] = {}
        for key, value in config.items():
            if key not in kinds:
                raise UserError(
                    f"the app has no setting {key}{did_you_mean(key, kinds)}; "
                    f"it has {', '.join(kinds)}"
                )
            if not _fits(value, kinds[key]):
                raise UserError(f"{key} must be {_KIND_NAMES[kinds[key]]}, not {value!r}")
            values[key.replace("-", "_")] = value
        options = AppOptions(**values)  # type: ignore[arg-type]
        if options.deadline_s <= 0:
            raise UserError("deadline-s must be more than 0 seconds")
        if options.patience_s < 0:
            raise UserError("patience-s must be 0 (wait for ever) or more")
        return options


def _fits(value: bool | float | int | str, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool)


def open_run(options: AppOptions) -> tuple[FlowerRunDirectory, CommitteeGateway]:
    """Return the directory of a new or continued run, and the way to its committee."""
    if options.federation:
        return _open_real(options)
    return _open_simulated(options)


def _open_simulated(options: AppOptions) -> tuple[FlowerRunDirectory, CommitteeGateway]:
    if options.resume:
        experiment = RunDirectory.open(Path(options.resume)).experiment()
    elif options.experiment:
        experiment = load(_find(options.experiment))
        experiment.check_untracked("`fedrfq watch` follows the run directory of a run on Flower")
    else:
        raise UserError(
            "no experiment is given: add --run-config \"experiment='FILE.toml'\"; "
            "`fedrfq config > FILE.toml` writes one"
        )
    samples = DealtSamples(experiment)
    settings = committee_settings(experiment, len(samples.dataset.classes))
    way = gateway(experiment, settings)
    plan = RunPlan(experiment, settings.task, way.federation, samples)
    if options.resume:
        return FlowerRunDirectory.resume(Path(options.resume), plan), way
    return FlowerRunDirectory.begin(Path(options.out), plan), way


def _open_real(options: AppOptions) -> tuple[FlowerRunDirectory, CommitteeGateway]:
    way = NetworkGateway(Path(options.federation), options.patience_s)
    task = way.federation.task
    samples = ReportedSamples(way.experiment.clients, task.classes)
    plan = RunPlan(way.experiment, task, way.federation, samples)
    if not options.resume:
        # Before anything is written: the committee may be out of reach, or ahead.
        way.check(0)
        return FlowerRunDirectory.begin(Path(options.out), plan), way
    directory = FlowerRunDirectory.resume(Path(options.resume), plan)
    way.check(directory.round)
    return directory, way


def _find(name: str) -> Path:
    """Return the file of this name, here or among those that came with the app."""
    for folder in (Path(), *map(Path, sys.path)):
        if (folder / name).is_file():
            return folder / name
    return Path(name)
