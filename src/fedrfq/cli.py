"""The command line: all commands, and how they fail.

Whatever a command works with is imported when it runs: `fedrfq --help` is quick, and a server never loads PyTorch.
"""

from __future__ import annotations

import errno
import sys

import typer

from fedrfq import (
    cli_client,
    cli_cluster,
    cli_committee,
    cli_compare,
    cli_data,
    cli_doctor,
    cli_evidence,
    cli_keys,
    cli_report,
    cli_reproduce,
    cli_run,
    cli_security,
    cli_server,
    cli_trained,
    cli_verify,
)
from fedrfq.errors import UserError

_SHOWN = 60  # letters of a path that is too long

app = typer.Typer(
    help="Federated learning by pooled class prototypes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(cli_run.run)
app.command()(cli_run.resume)
app.command()(cli_trained.show)
app.command()(cli_report.report)
app.command()(cli_run.config)
app.command("list")(cli_run.list_)
app.command()(cli_security.security)
app.command()(cli_trained.predict)
app.command()(cli_trained.export)
app.add_typer(cli_data.app, name="data")
app.add_typer(cli_committee.app, name="committee")
app.add_typer(cli_keys.app, name="keys")
app.command()(cli_doctor.doctor)
app.command()(cli_server.server)
app.command()(cli_client.client)
app.command("local-cluster")(cli_cluster.local_cluster)
app.command()(cli_compare.compare)
app.command()(cli_compare.robustness)
app.command()(cli_reproduce.reproduce)
app.command()(cli_verify.verify)
app.command()(cli_evidence.evidence)


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
        _fail("out of memory: lower train.batch_size, clients or the model's size, or stack fewer runs")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _fail(f"{str(error.filename)[:_SHOWN]}…: {error.strerror}: check the path")


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _out_of_memory(error: Exception) -> bool:
    """PyTorch says it by a RuntimeError, in other words on a GPU than on the CPU."""
    said = ("can't allocate memory", "out of memory", "could not create a primitive", "ALLOC_FAILED")
    return isinstance(error, MemoryError) or any(text in str(error) for text in said)


if __name__ == "__main__":
    main()
