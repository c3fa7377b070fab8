"""Commands as the pages print them, parsed by the program itself."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer.main

from fedrfq.cli.main import app


def parse(arguments: list[str]) -> list[str]:
    """What the command still needs; fails where there is no such command or option, or it does not take that much."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *arguments = arguments
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    found, extra, _ = command.make_parser(command.context_class(command)).parse_args(
        list(arguments)
    )
    assert not extra, f"{command.name} takes no {extra}"
    given = {name for name, value in found.items() if value and _said(value)}
    return [param.name for param in command.params if param.required and param.name not in given]


def _said(value: Any) -> bool:
    """What was written down; anything else stands for what was not."""
    return isinstance(value, str) or (isinstance(value, list | tuple) and all(map(_said, value)))


PROGRAM = re.compile(r"(?:sudo -u fedrfq )?(?:/opt/fedrfq/bin/|.venv/bin/|env/bin/)?fedrfq (.*)")
BLOCK = re.compile(r"^ *```(?:sh)?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def commands(lines: list[str]) -> list[list[str]]:
    """Those of this program, without comments; what has … in it is left open."""
    found = [
        shlex.split(match[1], comments=True)
        for line in lines
        if (match := PROGRAM.match(line.strip()))
    ]
    return [words for words in found if "…" not in words]


def whole_commands(text: str) -> list[list[str]]:
    return commands([line for block in BLOCK.findall(text) for line in block.splitlines()])


def mentioned_commands(text: str) -> list[list[str]]:
    """Inside sentences, where a command may stand without what it works on."""
    return commands(re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)))


def wrong(words: list[str], whole: bool) -> str:
    try:
        missing = parse(words)
    except Exception as error:
        return f"{shlex.join(words)}: {error}"
    if missing and whole:
        return f"{shlex.join(words)}: needs {missing}"
    return ""
