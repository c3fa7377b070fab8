"""The commands that train: `fedrfq run`, `resume`; and those that say what can be run: `config`, `list`."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.terminal import INTERRUPTED, progress, say, terminated_as_interrupt
from fedrfq.errors import UserError
from fedrfq.files.strict_json import to_json

if TYPE_CHECKING:
    from fedrfq.experiment import Experiment
    from fedrfq.learning.evaluation import RoundRecord
    from fedrfq.runs.session import Session

File = Annotated[
    Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="One TOML file is one run.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in method.lam=0.5."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="End with one JSON object on the last line of standard output."),
]
Deterministic = Annotated[
    bool, typer.Option(help="The same bytes again on CUDA, at some cost in speed.")
]
Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", help="The run's seed; given several times, the runs are stacked."),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run's directory, as printed at its end.")
]


def run(
    file: File = None,
    sets: Sets = None,
    seed: Seeds = None,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Where run directories go.")] = Path("runs"),
    json: Json = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show partition and expected time; write nothing.")
    ] = False,
    deterministic: Deterministic = False,
) -> None:
    """Run an experiment: every client trains, uploads its prototypes and gets the global ones back, round after round.

    Example: fedrfq run examples/mnist.toml --set method.lam=0.5 --seed 1
    """
    from fedrfq import experiment
    from fedrfq.runs.session import Session, pick_device

    first = experiment.load(file, sets or [], seed=seed[0] if seed else None)
    if seed:
        experiments = [replace(first, seed=other) for other in seed]
    else:
        experiments = [first]
    where = pick_device(device, deterministic)
    if dry_run:
        _dry_run(experiments, where)
        return
    with closing(Session.begin(experiments, where, out)) as session:
        _drive(session, json)


def resume(
    path: RunPath, device: Device = "auto", json: Json = False, deterministic: Deterministic = False
) -> None:
    """Continue a run after Ctrl-C, a crash or kill -9: it ends as if it had never stopped. One process at a time has a run.

    Example: fedrfq resume runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c
    """
    from fedrfq.runs.run_directory import RunDirectory
    from fedrfq.runs.session import Session, differences, pick_device

    run_ = RunDirectory.open(path)
    where = pick_device(device, deterministic or bool(run_.environment().get("deterministic")))
    changed = differences(run_, where)
    if changed:
        say(
            Console(stderr=True),
            f"note: {', '.join(changed)}: the last bits may differ from an uninterrupted run",
        )
    with closing(Session.resume(path, where)) as session:
        _drive(session, json)


def config(file: File = None, sets: Sets = None) -> None:
    """Print the resolved experiment as TOML: every key with the value it will have.

    Example: fedrfq config --set data.name=mnist > mine.toml
    """
    from fedrfq import experiment
    from fedrfq.files import toml

    sys.stdout.write(toml.dump(experiment.load(file, sets or []).table()))


def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, attacks, detectors, committees, models, data, partitions or pools."
        ),
    ] = "methods",
) -> None:
    """List what an experiment can name.

    Example: fedrfq list methods
    """
    kinds = _kinds()
    if what not in kinds:
        raise UserError(f"list what? One of {', '.join(kinds)}, not '{what}'")
    table = Table(what, "what it is")
    for name, text in kinds[what].items():
        table.add_row(name, text)
    Console(markup=False).print(table)


def _drive(session: Session, json: bool) -> None:
    """The session to its end with a progress bar; Ctrl-C and SIGTERM leave a checkpoint and say how to go on."""
    from fedrfq.runs.summary import plot, table

    errors = Console(stderr=True)
    try:
        with terminated_as_interrupt(), progress(errors) as bar:
            task = bar.add_task(
                "training", total=session.rounds, completed=session.state.round, figures=""
            )
            for outcomes in session.advance():
                bar.update(
                    task,
                    completed=session.state.round,
                    figures=_figures([o.record for o in outcomes]),
                )
    except KeyboardInterrupt:
        session.checkpoint()
        say(
            errors,
            f"stopped after round {session.state.round}; go on with: fedrfq resume {session.runs[0].path}",
        )
        raise typer.Exit(INTERRUPTED) from None
    results = session.finish()
    console = Console()
    for run_ in session.runs:
        console.print(table(run_))
        plot(run_)
        say(console, f"wrote {run_.path}")
    if json:
        sys.stdout.write(to_json(results[0] if len(results) == 1 else {"runs": results}) + "\n")


def _figures(records: list[RoundRecord]) -> str:
    head = sum(record.accuracy_mean for record in records) / len(records)
    collapsed = sum(record.collapsed_clients for record in records)
    return f"accuracy {head:.2f} %" + (f", {collapsed} collapsed" if collapsed else "")


def _dry_run(experiments: list[Experiment], device: Any) -> None:
    from fedrfq.data import load
    from fedrfq.learning.round_loop import RoundLoop
    from fedrfq.runs.estimate import estimate

    loop = RoundLoop(experiments, load(experiments[0].data.name), device)
    console = Console(markup=False)
    table = Table("client", "classes", "training samples", "test samples")
    partition = loop.partitions[0]
    for k, classes in enumerate(partition.classes):
        held = " ".join(loop.dataset.classes[j] for j in classes)
        table.add_row(str(k), held, str(len(partition.train[k])), str(len(partition.test[k])))
    console.print(table)
    cost = estimate(loop)
    say(console, f"partition: {to_json(partition.realised)}")
    say(console, f"{cost.samples:,} samples in {loop.experiments[0].rounds} rounds")
    say(
        console,
        f"expected time about {cost.seconds:,.0f} s, memory so far {cost.memory_bytes / 2**20:,.0f} MiB",
    )


def _kinds() -> dict[str, dict[str, str]]:
    """What can be listed: names, and a few words on each."""
    from fedrfq.committee import COMMITTEES
    from fedrfq.data import DATASETS
    from fedrfq.data.partition import PARTITIONS
    from fedrfq.methods import METHODS
    from fedrfq.models import MODELS
    from fedrfq.prototypes.pooling import POOLS
    from fedrfq.robust.attacks import ATTACKS
    from fedrfq.robust.detectors import DETECTORS

    return {
        "methods": {name: _about(kind) for name, kind in METHODS.items()},
        "attacks": {name: _about(kind) for name, kind in ATTACKS.items()},
        "detectors": {name: _about(kind) for name, kind in DETECTORS.items()},
        "committees": {name: _about(kind) for name, kind in COMMITTEES.items()},
        "models": {name: _about(kind) for name, kind in MODELS.items()},
        "data": {name: source.description for name, source in DATASETS.items()},
        "partitions": {
            name: (kind.__doc__ or "").split("\n")[0] for name, kind in PARTITIONS.items()
        },
        "pools": {name: (pool.__doc__ or "").split("\n")[0] for name, pool in POOLS.items()},
    }


def _about(kind: type) -> str:
    """What a class's module says in its first paragraph."""
    return (sys.modules[kind.__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
