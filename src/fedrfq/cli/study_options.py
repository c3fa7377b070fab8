"""The options that all commands for studies have: `compare`, `robustness` and `reproduce`.

What the commands do is in `study`, which imports PyTorch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrfq.cli.options import Deterministic, Device, Json
from fedrfq.errors import UserError

Models = Annotated[bool, typer.Option(help="Keep the trained models of runs that have ended.")]


@dataclass(frozen=True)
class StudyOptions:
    """What the user has chosen by these options."""

    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds. Default: as many as the study says.")
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=LABEL", help="Run only this label of an axis. Repeatable."),
    ] = None
    out: Annotated[
        Path,
        typer.Option(help="The folder for runs and tables; runs that have ended there are kept."),
    ] = Path("runs")
    device: Device = "auto"
    max_clients: Annotated[
        int | None,
        typer.Option(
            "--most",
            min=1,
            help="How many clients to train at once, to limit memory. "
            "Default: 200, or 4000 on CUDA.",
        ),
    ] = None
    deterministic: Deterministic = False
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--restart", help="Continue runs that have not ended, or restart them."
        ),
    ] = True
    json: Json = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained; write nothing.")
    ] = False

    def words(self) -> list[str]:
        """Return the options that decide what is studied, as they stand on a command line."""
        words = []
        if self.seeds:
            words += ["--seeds", str(self.seeds)]
        for label in self.only or []:
            words += ["--only", label]
        return words

    def labels(self) -> dict[str, list[str]]:
        """Return the labels of each axis that `--only` names."""
        labels: dict[str, list[str]] = {}
        for given in self.only or []:
            axis, equals, label = given.partition("=")
            if not equals:
                raise UserError(
                    f"--only takes AXIS=LABEL, for example --only method=fedrfq; found '{given}'"
                )
            labels.setdefault(axis.strip(), []).append(label.strip())
        return labels


def with_study_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that also has the options of all studies.

    It takes them as its first argument, a `StudyOptions`.
    """
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    shared = inspect.signature(StudyOptions, eval_str=True).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        options = StudyOptions(**{name: given.pop(name) for name in shared})
        command(options, **given)

    # Where typer looks for the parameters of a command.
    parameters = [*own, *shared.values()]
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
