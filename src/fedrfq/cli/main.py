"""The program `fedrfq`: all its commands, and how they report failure.

A command imports what it works with when it runs, so `fedrfq --help` is quick and a server never
loads PyTorch.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import fedrfq
from fedrfq.cli import (
    audit_privacy,
    client,
    committee,
    compare,
    config,
    data,
    doctor,
    evidence,
    finished_run,
    flower,
    keys,
    local_cluster,
    plugins,
    privacy,
    report,
    reproduce,
    run,
    runs,
    security,
    server,
    verify,
    watch,
)
from fedrfq.cli.argument_help import restore_argument_help
from fedrfq.cli.terminal import INTERRUPTED
from fedrfq.errors import UserError, first_line
from fedrfq.plugins import failing_line

# The exit code for an error that the user can fix.
_USER_ERROR = 2
# Characters shown of a path that is too long for the system.
_MAX_PATH_SHOWN = 60
# What the extra `train` brings.
_TRAINING_PACKAGES = ("torch", "sklearn", "scipy", "matplotlib", "mlxtend", "PIL")
# How PyTorch words a lack of memory; it raises a RuntimeError, and the CPU's words are not CUDA's.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "could not create a primitive",
    "ALLOC_FAILED",
)

# Headings under which `fedrfq --help` lists the commands.
_EXPERIMENTS = "Experiments on this machine"
_STUDIES = "Studies of many runs"
_NETWORK = "Federations on a network"
_AUDIT = "Audit"

app = typer.Typer(
    help="Federated learning by pooled class prototypes, agreed on by a committee of servers.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    # Called whether the option is given or not.
    if wanted:
        typer.echo(f"fedrfq {fedrfq.__version__}")
        raise typer.Exit


def _load_plugins(paths: list[Path] | None) -> None:
    from fedrfq.plugins import load_plugin

    for path in paths or []:
        load_plugin(path)


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            "--plugin",
            metavar="FILE.py",
            help="Load methods, attacks, datasets and the like of your own from this file. "
            "It may stand behind any command, and is repeatable.",
        ),
    ] = None,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show where an error comes from. It may stand behind any command."
        ),
    ] = False,
) -> None:
    """Take the options that all commands have."""
    _load_plugins(plugin)


# Help lists the commands in this order, though groups come after single commands.
app.command(rich_help_panel=_EXPERIMENTS)(run.run)
app.command(rich_help_panel=_EXPERIMENTS)(run.resume)
app.command(rich_help_panel=_EXPERIMENTS)(watch.watch)
app.command(rich_help_panel=_EXPERIMENTS)(runs.runs)
app.command(rich_help_panel=_EXPERIMENTS)(finished_run.show)
app.command(rich_help_panel=_EXPERIMENTS)(report.report)
app.command(rich_help_panel=_EXPERIMENTS)(finished_run.predict)
app.command(rich_help_panel=_EXPERIMENTS)(finished_run.export)
app.command(rich_help_panel=_EXPERIMENTS)(config.config)
app.command("list", rich_help_panel=_EXPERIMENTS)(config.list_)
app.command(rich_help_panel=_EXPERIMENTS)(privacy.privacy)
app.add_typer(data.app, name="data", rich_help_panel=_EXPERIMENTS)
app.command(rich_help_panel=_EXPERIMENTS)(plugins.new)
app.command(rich_help_panel=_EXPERIMENTS)(plugins.check)
app.command(rich_help_panel=_STUDIES)(compare.compare)
app.command(rich_help_panel=_STUDIES)(compare.robustness)
app.command(rich_help_panel=_STUDIES)(reproduce.reproduce)
app.command(rich_help_panel=_STUDIES)(security.security)
app.add_typer(flower.app, name="flower", rich_help_panel=_NETWORK)
app.command("local-cluster", rich_help_panel=_NETWORK)(local_cluster.local_cluster)
app.add_typer(keys.app, name="keys", rich_help_panel=_NETWORK)
app.add_typer(committee.app, name="committee", rich_help_panel=_NETWORK)
app.command(rich_help_panel=_NETWORK)(doctor.doctor)
app.command(rich_help_panel=_NETWORK)(server.server)
app.command(rich_help_panel=_NETWORK)(client.client)
app.command(rich_help_panel=_NETWORK)(client.forget)
app.command(rich_help_panel=_AUDIT)(verify.verify)
app.command(rich_help_panel=_AUDIT)(evidence.evidence)
app.command("audit-privacy", rich_help_panel=_AUDIT)(audit_privacy.audit_privacy)


def main() -> None:
    """Run the program; print an error that the user can fix on one line and exit with code 2."""
    arguments = common_options_first(sys.argv[1:])
    try:
        # What `app()` does, with the help of arguments restored in between.
        command = typer.main.get_command(app)
        restore_argument_help(command)
        command(arguments)
    except UserError as error:
        if "--debug" in arguments:
            traceback.print_exception(error)
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        message = _explained(error)
        if not message or "--debug" in arguments:
            raise
        _fail(message)


def _explained(error: Exception) -> str:
    """Return on one line what the user can mend; "" where the fault is ours."""
    # The base package is enough for servers and auditors. Everything else is an extra.
    if isinstance(error, ModuleNotFoundError) and _is_for_training(error.name or ""):
        return f"this command needs {error.name}: pip install 'fedrfq[train]'"
    if _is_out_of_memory(error):
        return (
            "out of memory: lower train.batch_size, clients or the size of the model, "
            "or train fewer runs at once"
        )
    # Any path that a user gives may be too long, so it is caught here, once for all commands.
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{str(error.filename)[:_MAX_PATH_SHOWN]}…: {error.strerror}: check the path"
    where = failing_line(error)
    if where:
        what = f"{type(error).__name__}: {first_line(error)}"
        return f"the plugin fails in {where}: {what}; --debug shows the traceback"
    return ""


def common_options_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with --plugin FILE and --debug moved before the command.

    So every command takes them, and none has to declare them.
    """
    first = []
    rest = list(arguments)
    end = len(rest)
    if "--" in rest:
        end = rest.index("--")
    at = 0
    while at < end:
        words = 0
        if rest[at].startswith("--plugin=") or rest[at] == "--debug":
            words = 1
        elif rest[at] == "--plugin":
            words = min(2, end - at)
        first += rest[at : at + words]
        del rest[at : at + words]
        end -= words
        at += words == 0
    return [*first, *rest]


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(_USER_ERROR)


def _is_for_training(module: str) -> bool:
    return module.split(".")[0] in _TRAINING_PACKAGES


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
