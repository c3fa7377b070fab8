"""Commands as the pages print them, parsed by the program itself."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer.main

from fedrfq.cli.main import app, common_options_first


def parse(arguments: list[str]) -> list[str]:
    """Return what the command still needs; raise where it does not take these words."""
    command: Any = typer.main.get_command(app)
    arguments = common_options_first(arguments)
    while arguments[0] == "--plugin":
        arguments = arguments[2:]
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
    """Return the words of this program's commands; those with … in them are left open."""
    found = []
    for line in lines:
        match = PROGRAM.match(line.strip())
        if match:
            found.append(_words(match[1]))
    return [words for words in found if "…" not in words and not words[0].startswith("--")]


def _words(line: str) -> list[str]:
    """Return the words of a command, without comments and what the shell does with its output."""
    words = shlex.split(line, comments=True)
    ends = [place for place, word in enumerate(words) if word in (">", "|", "&", "&&", ";")]
    return words[: min(ends, default=len(words))]


def whole_commands(text: str) -> list[list[str]]:
    """Return the commands of a page's code blocks; a backslash joins two lines."""
    blocks = [block.replace("\\\n", " ") for block in BLOCK.findall(text)]
    return commands([line for block in blocks for line in block.splitlines()])


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
