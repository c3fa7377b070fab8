"""The command line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedrfq import cli_committee, cli_compare, cli_data, cli_verify, experiment, toml
from fedrfq.attacks import ATTACKS
from fedrfq.committee import COMMITTEES
from fedrfq.data import DATASETS
from fedrfq.detectors import DETECTORS
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation import Federation
from fedrfq.measure import RoundRecord
from fedrfq.methods import METHODS
from fedrfq.models import MODELS
from fedrfq.partition import PARTITIONS
from fedrfq.pooling import POOLS
from fedrfq.records import RunDirectory, to_json
from fedrfq.session import Session, differences, pick_device
from fedrfq.terminal import INTERRUPTED, progress, say, terminated_as_interrupt

app = typer.Typer(
    help="Federated learning by pooled class prototypes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_data.app, name="data")
app.add_typer(cli_committee.app, name="committee")
app.command()(cli_compare.compare)
app.command()(cli_compare.robustness)
app.command()(cli_verify.verify)

File = Annotated[Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="One TOML file is one run.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in method.lam=0.5.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")]
Deterministic = Annotated[bool, typer.Option(help="The same bytes again on CUDA, at some cost in speed.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="The run's seed; given several times, the runs are stacked.")]
RunPath = Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory, as printed at its end.")]


@app.command()
def run(
    file: File = None,
    sets: Sets = None,
    seed: Seeds = None,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Where run directories go.")] = Path("runs"),
    json: Json = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show partition and expected time; write nothing.")] = False,
    deterministic: Deterministic = False,
) -> None:
    """Run an experiment: every client trains, uploads its prototypes and gets the global ones back, round after round.

    Example: fedrfq run examples/mnist.toml --set method.lam=0.5 --seed 1
    """
    first = experiment.load(file, sets or [], seed=seed[0] if seed else None)
    experiments = [replace(first, seed=other) for other in seed] if seed else [first]
    where = pick_device(device, deterministic)
    if dry_run:
        _dry_run(experiments, where)
        return
    _drive(Session.begin(experiments, where, out), json)


@app.command()
def resume(path: RunPath, device: Device = "auto", json: Json = False, deterministic: Deterministic = False) -> None:
    """Continue a run after Ctrl-C, a crash or kill -9: it ends as if it had never stopped.

    Example: fedrfq resume runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c
    """
    run_ = RunDirectory.open(path)
    where = pick_device(device, deterministic or bool(run_.environment().get("deterministic")))
    changed = differences(run_, where)
    if changed:
        say(Console(stderr=True), f"note: {', '.join(changed)}: the last bits may differ from an uninterrupted run")
    _drive(Session.resume(path, where), json)


@app.command()
def show(path: RunPath) -> None:
    """Print a run's table and draw its accuracy curve as accuracy.png in its directory.

    Example: fedrfq show runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c
    """
    from fedrfq.show import plot, table

    found = RunDirectory.open(path)
    console = Console()
    console.print(table(found))
    say(console, f"curve: {plot(found)}")


@app.command()
def config(file: File = None, sets: Sets = None) -> None:
    """Print the resolved experiment as TOML: every key with the value it will have.

    Example: fedrfq config --set data.name=mnist > mine.toml
    """
    sys.stdout.write(toml.dump(experiment.load(file, sets or []).table()))


@app.command("list")
def list_(
    what: Annotated[
        str, typer.Argument(help="methods, attacks, detectors, committees, models, data, partitions or pools.")
    ] = "methods",
) -> None:
    """List what an experiment can name.

    Example: fedrfq list methods
    """
    kinds: dict[str, dict[str, str]] = {
        "methods": {name: _about(kind) for name, kind in METHODS.items()},
        "attacks": {name: _about(kind) for name, kind in ATTACKS.items()},
        "detectors": {name: _about(kind) for name, kind in DETECTORS.items()},
        "committees": {name: _about(kind) for name, kind in COMMITTEES.items()},
        "models": {name: _about(kind) for name, kind in MODELS.items()},
        "data": {name: source.description for name, source in DATASETS.items()},
        "partitions": {name: (kind.__doc__ or "").split("\n")[0] for name, kind in PARTITIONS.items()},
        "pools": {name: (pool.__doc__ or "").split("\n")[0] for name, pool in POOLS.items()},
    }
    if what not in kinds:
        raise UserError(f"list what? One of {', '.join(kinds)}, not '{what}'")
    table = Table(what, "what it is")
    for name, text in kinds[what].items():
        table.add_row(name, text)
    Console(markup=False).print(table)


@app.command()
def security(
    servers: Annotated[str, typer.Option(help="Numbers of servers: N, or FIRST..LAST.")] = "4..40",
    p: Annotated[str, typer.Option("--p", help="Probabilities that a server is faulty, by commas.")] = "0.1,0.2,0.3",
    plot: Annotated[Path | None, typer.Option(help="Draw it to this file too (.png, .svg, .pdf).")] = None,
) -> None:
    """Print how likely a committee is to hold: that at most a third of its servers are faulty, exactly.

    Example: fedrfq security --servers 4..40 --p 0.1,0.2,0.3 --plot security.png
    """
    from fedrfq.security import draw, numbers, probabilities, tolerated
    from fedrfq.security import security as exact

    sizes, chances = numbers(servers), probabilities(p)
    table = Table("servers", "may be faulty", *(f"p = {float(chance):g}" for chance in chances))
    for size in sizes:
        table.add_row(str(size), str(tolerated(size)), *(f"{float(exact(size, chance)):.6f}" for chance in chances))
    Console().print(table)
    if plot:
        draw(plot, sizes, chances)
        say(Console(), f"wrote {plot}")


@app.command()
def predict(
    path: RunPath,
    client: Annotated[int, typer.Argument(help="Which client's model, from 0.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Pictures of the data's size.")],
    json: Json = False,
) -> None:
    """Classify pictures with a trained client's model, by its own head and by the nearest global prototype.

    Example: fedrfq predict runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c 3 digit.png
    """
    from fedrfq.trained import Client

    found = Client.load(RunDirectory.open(path), client).predict(files)
    table = Table("file", "class", "probability", "nearest prototype")
    for row in found:
        table.add_row(*("–" if value is None else str(value) for value in row.values()))
    Console(markup=False).print(table)
    if json:
        sys.stdout.write(to_json({"client": client, "predictions": found}) + "\n")


@app.command()
def export(
    path: RunPath,
    client: Annotated[int, typer.Argument(help="Which client's model, from 0.")],
    to: Annotated[str, typer.Option("--format", help="safetensors, torchscript or onnx.")] = "safetensors",
    out: Annotated[Path | None, typer.Option(help="The file; by default client-N in the run's directory.")] = None,
) -> None:
    """Write a client's trained model to a file that other programs load.

    Example: fedrfq export runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c 3 --format onnx
    """
    from fedrfq.trained import FORMATS, Client

    if to not in FORMATS:
        raise UserError(f"--format is one of {', '.join(FORMATS)}, not '{to}'")
    target = out or path / f"client-{client}{FORMATS[to]}"
    say(Console(), f"wrote {Client.load(RunDirectory.open(path), client).export(target, to)}")


def _drive(session: Session, json: bool) -> None:
    """The session to its end with a progress bar; Ctrl-C and SIGTERM leave a checkpoint and say how to go on."""
    from fedrfq.show import plot, table

    errors = Console(stderr=True)
    try:
        with terminated_as_interrupt(), progress(errors) as bar:
            task = bar.add_task("training", total=session.rounds, completed=session.state.round, figures="")
            for outcomes in session.advance():
                bar.update(task, completed=session.state.round, figures=_figures([o.record for o in outcomes]))
    except KeyboardInterrupt:
        session.checkpoint()
        say(errors, f"stopped after round {session.state.round}; go on with: fedrfq resume {session.runs[0].path}")
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
    from fedrfq.estimate import estimate

    federation = Federation(experiments, load(experiments[0].data.name), device)
    console = Console(markup=False)
    table = Table("client", "classes", "training samples", "test samples")
    partition = federation.partitions[0]
    for k, classes in enumerate(partition.classes):
        held = " ".join(federation.dataset.classes[j] for j in classes)
        table.add_row(str(k), held, str(len(partition.train[k])), str(len(partition.test[k])))
    console.print(table)
    cost = estimate(federation)
    say(console, f"partition: {to_json(partition.realised)}")
    say(console, f"{cost.samples:,} samples in {federation.experiments[0].rounds} rounds")
    say(console, f"expected time about {cost.seconds:,.0f} s, memory so far {cost.memory_bytes / 2**20:,.0f} MiB")


def _about(kind: type) -> str:
    """What a class's module says in its first paragraph."""
    return (sys.modules[kind.__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")


def main() -> None:
    """Entry point: what a user can mend is one line on standard error and exit code 2."""
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _fail("out of memory: lower train.batch_size, clients or the model's size, or stack fewer runs")


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _out_of_memory(error: Exception) -> bool:
    """PyTorch says it of a GPU by a class of its own, of the CPU by a plain RuntimeError."""
    said = ("can't allocate memory", "out of memory", "could not create a primitive", "ALLOC_FAILED")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in str(error) for text in said)


if __name__ == "__main__":
    main()
