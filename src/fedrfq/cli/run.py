"""The commands that train: `fedrfq run` and `fedrfq resume`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.modules import give_modules
from fedrfq.cli.options import Deterministic, Device, Json, Modules, RunPath, Sets
from fedrfq.cli.terminal import (
    INTERRUPTED,
    command_line,
    progress,
    say,
    terminated_as_interrupt,
)
from fedrfq.errors import UserError, first_line
from fedrfq.files.strict_json import to_json
from fedrfq.plugins import failing_line

if TYPE_CHECKING:
    from fedrfq.data import Dataset
    from fedrfq.experiment import Experiment
    from fedrfq.learning.evaluation import RoundRecord
    from fedrfq.runs.run_directory import RunDirectory
    from fedrfq.runs.session import Session

_MIB = 2**20
_DONE = "note: all rounds of this run are trained; here is the result"
# The file in a run's directory in which the traceback of a plugin's error is kept.
TRACEBACK = "traceback.txt"

File = Annotated[
    Path | None,
    typer.Argument(
        metavar="[EXPERIMENT.toml]",
        help="The experiment, as one TOML file. Default: FedRFQ on mnist5k.",
    ),
]
WatchOption = Annotated[
    bool,
    typer.Option(
        "--watch", help="Follow the run on a page of this machine, as `fedrfq watch` does."
    ),
]
Seeds = Annotated[
    list[int] | None,
    typer.Option(
        "--seed", help="The seed of the run. Repeat it to train several seeds side by side."
    ),
]


def run(
    file: File = None,
    sets: Sets = None,
    seed: Seeds = None,
    device: Device = "auto",
    out: Annotated[
        Path, typer.Option(help="The folder in which the run directory is created.")
    ] = Path("runs"),
    json: Json = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show each client's data and the expected time; write nothing."
        ),
    ] = False,
    deterministic: Deterministic = False,
    watch: WatchOption = False,
    module: Modules = None,
) -> None:
    """Run an experiment.

    In each round every client trains, uploads its prototypes and receives the global ones. Ctrl-C
    leaves a checkpoint; `fedrfq resume` continues from it.

    Example: fedrfq run examples/mnist.toml --set method.lam=0.5 --seed 1
    """
    from fedrfq.runs.session import Session, pick_device

    first, dataset = read_experiment(file, sets or [], seed, module or [])
    # Stacked runs differ in nothing but their seeds.
    experiments = [first]
    if seed:
        experiments = [replace(first, seed=value) for value in seed]
    torch_device = pick_device(device, deterministic)
    if dry_run:
        _dry_run(experiments, torch_device)
        return
    with (
        closing(Session.begin(experiments, torch_device, out, dataset)) as session,
        _page(session, watch),
    ):
        _train(session, json)


def read_experiment(
    file: Path | None, sets: Sequence[str], seeds: list[int] | None, modules: Sequence[str]
) -> tuple[Experiment, Dataset | None]:
    """Return the experiment, and its data where a module had to be tried on them."""
    from fedrfq.data import load
    from fedrfq.experiment import from_table
    from fedrfq.experiment.reading import data_name, read_table
    from fedrfq.runs.given_modules import imported, with_modules

    table = read_table(file, sets, seed=seeds[0] if seeds else None)
    if not modules:
        return from_table(table), None
    dataset = load(data_name(table))
    given = imported(modules)
    return from_table(with_modules(table, given, dataset.shape, len(dataset.classes))), dataset


def resume(
    path: RunPath,
    device: Device = "auto",
    json: Json = False,
    deterministic: Deterministic = False,
    watch: WatchOption = False,
    module: Modules = None,
) -> None:
    """Continue a run after Ctrl-C, a crash or kill -9.

    The run ends as if it had never stopped. Only one process at a time can work on a run.

    Example: fedrfq resume runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c
    """
    from fedrfq.runs.run_directory import RunDirectory
    from fedrfq.runs.session import Session, differences, pick_device

    stopped = RunDirectory.open(path)
    give_modules(stopped, module or [])
    # A run that began with deterministic kernels goes on with them, or its bytes would differ.
    was_deterministic = bool(stopped.environment().get("deterministic"))
    torch_device = pick_device(device, deterministic or was_deterministic)
    errors = Console(stderr=True)
    changes = differences(stopped, torch_device)
    if changes:
        say(
            errors,
            f"note: {', '.join(changes)}: the last bits may differ from an uninterrupted run",
        )
    runs = [RunDirectory.open(other) for other in stopped.stack()]
    results = [result for one in runs if (result := one.result())]
    if len(results) == len(runs) and _needs_objects(stopped.experiment(exact=True)):
        # There is nothing to train, for which data or a module would have to be given again.
        say(errors, _DONE)
        _show_end(runs, results, json)
        return
    with closing(Session.resume(path, torch_device)) as session, _page(session, watch):
        if session.state.round == session.rounds:
            say(errors, _DONE)
        _train(session, json)


def _needs_objects(experiment: Experiment) -> bool:
    """Return whether to train takes data or a module that the user gives to each process."""
    from fedrfq.data import is_given
    from fedrfq.runs.given_modules import sources

    return is_given(experiment.data.name) or bool(sources(experiment))


@contextmanager
def _page(session: Session, watch: bool) -> Iterator[None]:
    """Serve a page that follows the runs of this session, if that is wanted."""
    if not watch:
        yield
        return
    from fedrfq.report.watch import watching

    with watching([run.path for run in session.runs]) as address:
        say(Console(stderr=True), f"open {address} in a browser")
        yield


def _train(session: Session, json: bool) -> None:
    """Train to the end with a progress bar; on Ctrl-C or SIGTERM, save and say how to continue."""
    from fedrfq.runs import given_modules

    errors = Console(stderr=True)
    try:
        _advance(session, errors)
    except KeyboardInterrupt:
        session.stop()
        modules = given_modules.options(session.loop.experiments[0])
        again = command_line("resume", session.runs[0].path, *modules)
        say(errors, f"stopped after round {session.state.round}; continue with: {again}")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        _tell_plugin_failed(session, error)
        raise
    # From here on the run is complete on the disk; the rest only shows it.
    _show_end(session.runs, session.finish(), json)


def _show_end(
    runs: Sequence[RunDirectory], results: Sequence[Mapping[str, Any]], json: bool
) -> None:
    _show_results(runs)
    # With --json the last line of the output belongs to a program, not to a person.
    if not json:
        _suggest_commands(runs)
    elif len(results) == 1:
        sys.stdout.write(to_json(results[0]) + "\n")
    else:
        sys.stdout.write(to_json({"runs": results}) + "\n")


def _tell_plugin_failed(session: Session, error: Exception) -> None:
    """Where a plugin's code has failed, keep the traceback in the run's directory, and say so."""
    where = failing_line(error)
    if not where or isinstance(error, UserError):
        return
    path = session.runs[0].path
    (path / TRACEBACK).write_text("".join(format_exception(error)), encoding="utf-8")
    again = command_line("resume", path)
    # Chained, so that --debug shows it all.
    raise UserError(
        f"the plugin fails in {where}: {type(error).__name__}: {first_line(error)}; the run is "
        f"kept after round {session.state.round}: mend the cause and continue with {again}, or "
        f"start anew if the plugin's file must change; the traceback is in {path / TRACEBACK}"
    ) from error


def _advance(session: Session, errors: Console) -> None:
    with terminated_as_interrupt(), progress(errors) as bar:
        task = bar.add_task(
            "training", total=session.rounds, completed=session.state.round, figures=""
        )
        for outcomes in session.advance():
            figures = _figures([outcome.record for outcome in outcomes])
            bar.update(task, completed=session.state.round, figures=figures)


def _show_results(runs: Sequence[RunDirectory]) -> None:
    from fedrfq.cli.run_table import run_table
    from fedrfq.runs.summary import plot

    console = Console()
    for run_ in runs:
        console.print(run_table(run_))
        plot(run_)
        say(console, f"wrote {run_.path}")


def _suggest_commands(runs: Sequence[RunDirectory]) -> None:
    """Print what can be done with a finished run, as commands that can be pasted."""
    paths = [run_.path for run_ in runs]
    suggestions = [
        (command_line("show", paths[0]), "this table and the accuracy curve again"),
        (command_line("report", *paths), "a page for the browser"),
    ]
    # Only a committee leaves a log that can be verified; one trusted server does not.
    if (paths[0] / "audit.log").exists():
        suggestions.append((command_line("verify", paths[0]), "check what the committee decided"))
    console = Console()
    say(console, "\nTry next:")
    for command, purpose in suggestions:
        say(console, f"  {command}  # {purpose}")


def _figures(records: list[RoundRecord]) -> str:
    """Return the accuracy, and any collapse, of the latest round of all runs, for the bar."""
    accuracy = sum(record.accuracy_mean for record in records) / len(records)
    collapsed = sum(record.collapsed_clients for record in records)
    figures = f"accuracy {accuracy:.2f} %"
    if collapsed:
        figures += f", {collapsed} clients collapsed"
    return figures


def _dry_run(experiments: list[Experiment], device: Any) -> None:
    """Print which data each client would train on, how long it would take, and the memory used."""
    from fedrfq.learning.round_loop import RoundLoop
    from fedrfq.runs import privacy_record
    from fedrfq.runs.estimate import estimate
    from fedrfq.runs.public_summary import planned_rows

    loop = RoundLoop(experiments, experiments[0].data.load(), device)
    console = Console(markup=False)
    table = Table("client", "classes", "training samples", "test samples")
    # Each seed has a partition of its own; the first stands for all.
    partition = loop.partitions[0]
    for client, classes in enumerate(partition.classes):
        table.add_row(
            str(client),
            " ".join(loop.dataset.classes[label] for label in classes),
            str(len(partition.train[client])),
            str(len(partition.test[client])),
        )
    console.print(table)
    cost = estimate(loop)
    memory = f"{cost.memory_bytes / _MIB:,.0f} MiB"
    dealt = partition.realised
    held = f"{dealt['classes_mean']:.2f} ± {dealt['classes_std']:.2f} classes per client"
    say(console, f"{held}; {dealt['samples_min']} to {dealt['samples_max']} training samples")
    planned = planned_rows(experiments[0], partition, len(loop.dataset.classes))
    for label, fact in planned + privacy_record.planned_rows(experiments[0], dealt):
        say(console, f"{label}: {fact}")
    say(console, f"{cost.samples:,} samples in {loop.experiments[0].rounds} rounds")
    say(console, f"expected time: about {cost.seconds:,.0f} s; memory so far: {memory}")
