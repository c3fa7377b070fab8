"""Restore the help of positional arguments, which typer loses when it runs on click 8.5.

click 8.5 gave `Argument` a `help` of its own and resets what typer (up to 0.20) had stored there,
so `--help` lists the arguments without a word on them. Delete this module once typer is fixed.
"""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints


# Newer releases of typer carry a click of their own and move what is not documented, so nothing
# here names a class of either.
def restore_argument_help(command: Any) -> None:
    """Give the arguments of a command, and of all commands below it, their help texts back."""
    if hasattr(command, "commands"):
        for subcommand in command.commands.values():
            restore_argument_help(subcommand)
        return
    if command.callback is None:
        return
    declared = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    for parameter in command.params:
        if parameter.param_type_name == "argument" and not getattr(parameter, "help", None):
            parameter.help = _help(declared.get(parameter.name))


def _help(annotation: Any) -> str | None:
    """Return the help of `Annotated[TYPE, typer.Argument(help=…)]`."""
    for given in getattr(annotation, "__metadata__", ()):
        if isinstance(getattr(given, "help", None), str):
            return str(given.help)
    return None
