"""The program itself: its version, its help, shell completion, and how it words commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

import fedrfq as package
from fedrfq.cli.argument_help import restore_argument_help
from fedrfq.cli.main import app
from fedrfq.cli.terminal import command_line
from support.command import fedrfq

MAX_SUMMARY = 100


def commands(command: Any, path: str = "fedrfq") -> Iterator[tuple[str, Any]]:
    """Yield every command that can be run, with the words that run it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, subcommand in command.commands.items():
        yield from commands(subcommand, f"{path} {name}")


def program() -> Any:
    command = typer.main.get_command(app)
    restore_argument_help(command)
    return command


COMMANDS = dict(commands(program()))


def test_the_version_is_that_of_the_installed_package() -> None:
    assert package.__version__ == version("fedrfq")
    assert fedrfq("--version").stdout == f"fedrfq {version('fedrfq')}\n"


def test_without_the_packages_for_training_one_line_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['fedrfq', 'run'];"
        "from fedrfq.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "error: this command needs torch: pip install 'fedrfq[train]'\n"


def test_ctrl_c_while_the_program_is_imported_ends_it_without_a_word() -> None:
    script = """
import os, signal, sys
class Interrupted:
    def find_spec(name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupted)
from fedrfq.cli.start import start
start()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_program_that_is_told_to_ignore_ctrl_c_does_so_while_it_is_imported() -> None:
    script = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from fedrfq.cli.start import start
sys.argv = ["fedrfq", "--version"]
try:
    start()
finally:
    print(signal.getsignal(signal.SIGINT).name)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.endswith("SIG_IGN\n")


def test_of_typer_only_what_it_documents_is_used() -> None:
    """Releases of typer move what is inside, and the newest carries a click of its own."""
    sources = (Path(package.__file__).parent).rglob("*.py")
    for path in sources:
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]) and words[1].split(".")[0] in ("typer", "click"):
                assert words == ["import", "typer"], f"{path}: {line}"


def test_importing_the_package_imports_nothing_else() -> None:
    script = (
        "import sys, fedrfq; print([name for name in sys.modules if name.startswith('fedrfq')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "['fedrfq']\n"


@pytest.mark.parametrize("path", COMMANDS)
def test_help_is_one_plain_sentence_then_details_and_an_example(path: str) -> None:
    text = COMMANDS[path].help
    assert text is not None
    summary, *_, example = text.split("\n\n")
    assert summary.endswith(".")
    assert "\n" not in summary
    assert len(summary) <= MAX_SUMMARY
    assert example.startswith(f"Example: {path}")


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_and_argument_is_described(path: str) -> None:
    for parameter in COMMANDS[path].params:
        text = getattr(parameter, "help", None)
        assert text, f"{path}: {parameter.name}"
        assert text[0].isupper()
        assert text.endswith(".")


def test_the_help_of_arguments_is_printed() -> None:
    assert "run directory" in fedrfq("resume", "--help").stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fedrfq list att", {"attacks"}),
        ("fedrfq data get mni", {"mnist", "mnist5k"}),
        ("fedrfq reproduce tab", {"table1"}),
        ("fedrfq export run 0 --format o", {"onnx"}),
    ],
)
def test_names_are_completed(words: str, expected: set[str]) -> None:
    environment = {
        **os.environ,
        "_FEDRFQ_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    script = "import sys; sys.argv = ['fedrfq']; from fedrfq.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert expected <= set(done.stdout.split())


def test_commands_to_paste_name_the_program_as_it_was_started(tmp_path: Path) -> None:
    started = {
        "fedrfq": "fedrfq",
        "/opt/my env/bin/fedrfq": "'/opt/my env/bin/fedrfq'",
        "/x/fedrfq/cli/__main__.py": f"{sys.executable} -m fedrfq.cli",
    }
    for argument, shown in started.items():
        with mock.patch.object(sys, "argv", [argument]):
            assert command_line("show", "a run") == f"{shown} show 'a run'"
    own = tmp_path / "fedrfq"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    with (
        mock.patch.object(sys, "argv", [str(own)]),
        mock.patch.dict(os.environ, {"PATH": str(tmp_path)}),
    ):
        assert command_line("show") == "fedrfq show"
