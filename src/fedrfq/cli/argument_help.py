"""Restore the help of positional arguments, which typer loses when it runs on click 8.5.

click 8.5 gave `Argument` a `help` of its own and resets what typer (up to 0.20) had stored there,
so `--help` lists the arguments without a word on them. Delete this module once typer is fixed.
"""

from __future__ import annotations

import inspect
from typing import Any

from typer.models import ArgumentInfo
from typer.utils import get_params_from_function


# Newer releases of typer carry a click of their own, so there is no one class to name here.
def restore_argument_help(command: Any) -> None:
    """Give the arguments of a command, and of all commands below it, their help texts back."""
    if hasattr(command, "commands"):
        for subcommand in command.commands.values():
            restore_argument_help(subcommand)
        return
    if command.callback is None:
        return
    declared = get_params_from_function(inspect.unwrap(command.callback))
    for parameter in command.params:
        if parameter.param_type_name != "argument" or parameter.name not in declared:
            continue
        info = declared[parameter.name].default
        if isinstance(info, ArgumentInfo) and not getattr(parameter, "help", None):
            parameter.help = info.help
