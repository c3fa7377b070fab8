"""The command line: all commands, and how they fail.

Whatever a command works with is imported when it runs: `fedrfq --help` is quick, and a server never loads PyTorch.
"""

from __future__ import annotations

import errno
import sys

import typer

from fedrfq.cli import (
    client,
    committee,
    compare,
    data,
    doctor,
    evidence,
    finished_run,
    keys,
    local_cluster,
    report,
    reproduce,
    run,
    security,
    server,
    verify,
)
from fedrfq.errors import UserError

_SHOWN = 60  # letters of a path that is too long

app = typer.Typer(
    help="Federated learning by pooled class prototypes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run.run)
app.command()(run.resume)
app.command()(finished_run.show)
app.command()(report.report)
app.command()(run.config)
app.command("list")(run.list_)
app.command()(security.security)
app.command()(finished_run.predict)
app.command()(finished_run.export)
app.add_typer(data.app, name="data")
app.add_typer(committee.app, name="committee")
app.add_typer(keys.app, name="keys")
app.command()(doctor.doctor)
app.command()(server.server)
app.command()(client.client)
app.command("local-cluster")(local_cluster.local_cluster)
app.command()(compare.compare)
app.command()(compare.robustness)
app.command()(reproduce.reproduce)
app.command()(verify.verify)
app.command()(evidence.evidence)


def main() -> None:
    """Entry point: what a user can mend is one line on standard error and exit code 2."""
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _fail(
            "out of memory: lower train.batch_size, clients or the model's size, or stack fewer runs"
        )
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _fail(f"{str(error.filename)[:_SHOWN]}…: {error.strerror}: check the path")


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _out_of_memory(error: Exception) -> bool:
    """PyTorch says it by a RuntimeError, in other words on a GPU than on the CPU."""
    said = (
        "can't allocate memory",
        "out of memory",
        "could not create a primitive",
        "ALLOC_FAILED",
    )
    return isinstance(error, MemoryError) or any(text in str(error) for text in said)
