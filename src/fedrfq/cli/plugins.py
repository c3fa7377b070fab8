"""Write a plugin and find out whether it keeps its contract: `fedrfq new` and `fedrfq check`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedrfq import plugins
from fedrfq.cli.completion import complete
from fedrfq.cli.options import Json
from fedrfq.cli.terminal import command_line, count, say
from fedrfq.files.strict_json import to_json

if TYPE_CHECKING:
    from fedrfq.api.contracts import Finding

# The exit code when a check fails.
_FAILED = 1


def new(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"What to write: {', '.join(plugins.REGISTRIES)}.",
            autocompletion=complete(lambda: plugins.REGISTRIES),
        ),
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name, as an experiment will call it.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path(),
) -> None:
    """Write a plugin that runs, with comments and a test, for you to change.

    It writes NAME.py and test_NAME.py, and never over a file that is there.

    Example: fedrfq new method pull
    """
    from fedrfq.api.new_plugin import example_settings, write

    file, test = write(kind, name, out)
    console = Console()
    say(console, f"wrote {file} and {test}")
    say(console, "\nTry next:")
    say(console, f"  {command_line('run', '--plugin', file, *example_settings(kind, name))}")
    say(console, f"  {command_line('check', file)}  # does it keep its contract?")
    say(console, f"  {shlex.quote(sys.executable)} -m pytest {test}")


def check(
    plugin: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py|PACKAGE", help="A plugin's file, or an installed package of plugins."
        ),
    ],
    json: Json = False,
) -> None:
    """Run the contract tests against all that a plugin registers.

    Losses are finite, inputs stay untouched, the same seed gives the same bytes, all clients at
    once are as each alone, and what calls itself exact uses integers alone and decides the same in
    another process. The exit code is 1 if a check fails.

    Example: fedrfq check pull.py
    """
    from fedrfq.api.contracts import check_package, check_plugin

    if plugin.endswith(".py"):
        found = check_plugin(plugin)
    else:
        found = check_package(plugin)
    failed = [finding for finding in found if not finding.holds]
    if json:
        answer = {"holds": not failed, "checks": [asdict(finding) for finding in found]}
        sys.stdout.write(to_json(answer) + "\n")
    else:
        _show(found)
        say(Console(), f"{count(len(found), 'check')}, {len(failed)} failed")
    if failed:
        raise typer.Exit(_FAILED)


def _show(found: list[Finding]) -> None:
    """Print one line for each check, and below those that fail what was found."""
    table = Table(Column("", no_wrap=True), Column("of", no_wrap=True), "check")
    for finding in found:
        words = finding.check
        if finding.found:
            words += f"\n→ {finding.found}" if not finding.holds else f" ({finding.found})"
        mark = "holds" if finding.holds else "FAILS"
        table.add_row(mark, f"{finding.kind} {finding.name}", words)
    Console(markup=False).print(table)
