"""Write the reference pages that come from the code: configuration, commands, the layers.

python docs/generate.py            write the pages
python docs/generate.py --check    say whether they are up to date; exit code 1 if not
python docs/generate.py --run      first run the notebooks, and store in them what they print
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import MISSING
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer.main

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from fedrfq.cli.argument_help import restore_argument_help  # noqa: E402
from fedrfq.cli.main import app  # noqa: E402
from fedrfq.experiment.reference import ConfigKey, all_options, sections  # noqa: E402
from support import notebooks  # noqa: E402  (found in tests/)
from support.layers import diagram  # noqa: E402

GENERATED = "<!-- Made by docs/generate.py from the code: do not edit. -->"


def configuration() -> str:
    """Return the page of every configuration key."""
    lines = [
        "# Configuration",
        "",
        GENERATED,
        "",
        "One TOML file is one run. Every key below may stand in that file or be given as",
        "`--set section.key=value`. `fedrfq config` prints all of them with their values, and",
        "`fedrfq config --describe` prints these descriptions.",
        "",
        "A section with a `name` is one of several kinds, and each kind has keys of its own. Where",
        "the data suits another default (FEMNIST, CIFAR-10), that one is taken unless you set the",
        "key; `fedrfq config --set data.name=femnist` shows it.",
    ]
    about = sections()
    for section, keys in groupby(all_options(), key=lambda key: key.section):
        lines += ["", f"## {_title(section)}", ""]
        if section in about:
            lines += [_escaped(_sentence(about[section])), ""]
        lines += _kinds(list(keys))
    return "\n".join(lines) + "\n"


def _title(section: str) -> str:
    if not section:
        return "Top level"
    return "`[[cohorts]]`" if section == "cohorts" else f"`[{section}]`"


def _kinds(keys: list[ConfigKey]) -> Iterator[str]:
    for kind, own in groupby(keys, key=lambda key: key.kind):
        if kind:
            yield from ("", f'### `{keys[0].section}.name = "{kind}"`', "")
        yield "| key | default | range | meaning |"
        yield "|---|---|---|---|"
        for key in own:
            yield _row(key)


def _row(key: ConfigKey) -> str:
    limits = key.range or _type(key.type)
    cells = (f"`{key.key}`", _default(key.default), limits, _sentence(key.help))
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(cell: str) -> str:
    """Return a table cell in which bars and brackets stand for themselves."""
    return cell.replace("|", "\\|").replace("[", "\\[")


def _default(value: Any) -> str:
    if value is MISSING:
        return "must be given"
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{value}`"


def _type(name: str) -> str:
    names = {"bool": "true, false", "str": "text", "int": "a whole number", "float": "a number"}
    return names.get(name, name)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "…")) else f"{text}."


def commands() -> str:
    """Return the page of every command."""
    group = typer.main.get_command(app)
    restore_argument_help(group)
    lines = [
        "# Commands",
        "",
        GENERATED,
        "",
        "`fedrfq COMMAND --help` prints the same. If something is wrong that you can put right, a",
        "command prints one line on standard error and ends with exit code 2.",
    ]
    with group.context_class(group, info_name="fedrfq") as context:
        lines += _command_lines(group, context)
    return "\n".join(lines) + "\n"


def _command_lines(command: Any, context: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is None or inner.hidden:
                continue
            with type(context)(inner, info_name=name, parent=context) as below:
                yield from _command_lines(inner, below)
        return
    yield from ("", f"## `{context.command_path}`", "", _help(command.help), "")
    yield from ("```", _usage(command, context), "```", "")
    rows = [_parameter(parameter) for parameter in command.params]
    rows = [row for row in rows if row]
    if rows:
        yield "| argument or option | meaning |"
        yield "|---|---|"
        yield from rows


def _usage(command: Any, context: Any) -> str:
    """Return the shape of a call; click's own wording changes from release to release."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    return " ".join([context.command_path, "[OPTIONS]", *map(_metavar, arguments)])


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.nargs == -1:
        name = name.rstrip(".…") + "…"
    if argument.required or name.startswith("["):
        return name
    return f"[{name}]"


def _help(text: str | None) -> str:
    """Return a command's help as Markdown: lines of an example stand in a block of their own."""
    found = inspect.cleandoc(text or "").replace("\b", "")
    return re.sub(r"\n{3,}", "\n\n", found).strip()


def _parameter(parameter: Any) -> str:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return ""
    if parameter.param_type_name == "argument":
        names = f"`{_metavar(parameter)}`"
    else:
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    text = " ".join((getattr(parameter, "help", None) or "").split())
    default = parameter.default
    # Of a pair such as --models and --no-models, the first is the default if the value is true.
    if default is True and parameter.secondary_opts:
        default = parameter.opts[0]
    shown = default not in (None, "", False, ()) and not callable(default)
    if shown and not parameter.required and type(default).__name__ != "Sentinel":
        text += f" Default: `{default}`."
    return f"| {names} | {text.strip()} |".replace("\n", " ")


def architecture(page: str) -> str:
    """Return the architecture page with the diagram drawn anew."""
    return re.sub(
        r"```mermaid\n.*?```", lambda _: f"```mermaid\n{diagram()}\n```", page, flags=re.DOTALL
    )


def notebook(path: Path) -> str:
    """Return a notebook as a page: its text, its code, and what that printed."""
    title, *texts = [_cell(cell) for cell in notebooks.read(path)["cells"]]
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    where = colab(path.name, project.get("urls", {}).get("Repository", ""))
    download = (
        f"Download the notebook: [{path.name}]({path.name}). It runs in Jupyter where fedrfq is "
        f"installed, and in Colab after `%pip install` of its wheel: {where}."
    )
    return "\n\n".join([title, GENERATED, download, *texts]) + "\n"


def colab(name: str, repository: str) -> str:
    """Return a link to Colab: to the notebook itself, if the repository is on GitHub."""
    _, github, project = repository.removesuffix("/").partition("https://github.com/")
    if not github:
        return "[open Colab](https://colab.research.google.com/), File > Upload notebook (untested)"
    page = f"https://colab.research.google.com/github/{project}/blob/main/docs/notebooks/{name}"
    return f"[open it in Colab]({page}) (untested)"


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    blocks = [f"```python\n{text}\n```"]
    if cell["outputs"]:
        blocks.append(f"```text\n{notebooks.output(cell)}```")
    return "\n\n".join(blocks)


def _run_notebooks() -> None:
    """Run each in an empty folder."""
    for path in notebooks.NOTEBOOKS:
        with TemporaryDirectory() as folder, chdir(folder):
            notebooks.write(path)


def pages() -> dict[Path, str]:
    """Return what each generated page should hold."""
    layers = DOCS / "concepts" / "architecture.md"
    return {
        **{path.with_suffix(".md"): notebook(path) for path in notebooks.NOTEBOOKS},
        DOCS / "reference" / "configuration.md": configuration(),
        DOCS / "reference" / "commands.md": commands(),
        layers: architecture(layers.read_text(encoding="utf-8")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--run", action="store_true", help="first run the notebooks")
    asked = parser.parse_args()
    check = asked.check
    if asked.run:
        _run_notebooks()
    stale = []
    for path, text in pages().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(DOCS.parent)))
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()
