"""Restore the help of positional arguments, which typer loses when it runs on click 8.5.

click 8.5 gave `Argument` a `help` of its own and resets what typer (up to 0.20) had stored there,
so `--help` lists the arguments without a word on them. Delete this module once typer is fixed.
"""

from __future__ import annotations

import inspect

import click
from typer.models import ArgumentInfo
from typer.utils import get_params_from_function


def restore_argument_help(command: click.Command) -> None:
    """Give the arguments of a command, and of all commands below it, their help texts back."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            restore_argument_help(subcommand)
        return
    if command.callback is None:
        return
    declared = get_params_from_function(inspect.unwrap(command.callback))
    for parameter in command.params:
        if not isinstance(parameter, click.Argument) or parameter.name not in declared:
            continue
        info = declared[parameter.name].default
        if isinstance(info, ArgumentInfo) and not getattr(parameter, "help", None):
            parameter.help = info.help
