"""How a run is made again: by commands, or in Python where it had what no command can name."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from fedrfq import plugins
from fedrfq.data import DATASETS, is_given
from fedrfq.models.any_module import UNNAMED
from fedrfq.report.run_data import RunData
from fedrfq.runs import given_modules


def lines(run: RunData) -> list[str]:
    """Return the commands, or the lines of Python, that repeat a run."""
    needed = [row["name"] for row in run.experiment.table().get("plugins", [])]
    packages = [name.removeprefix("package ") for name in needed if name.startswith("package ")]
    typed = [name.removeprefix("notebook ") for name in needed if name.startswith("notebook ")]
    files = list(dict.fromkeys(filter(None, map(plugins.file_of, needed))))
    install = [shlex.join(["pip", "install", package]) for package in packages]
    modules = given_modules.options(run.experiment)
    if typed or UNNAMED in modules or is_given(run.experiment.data.name):
        return [f"# {line}" for line in install] + _in_python(run, typed, files)
    return install + _commands(
        run, [word for file in files for word in ("--plugin", file)], modules
    )


def _commands(run: RunData, given: Sequence[str], modules: Sequence[str]) -> list[str]:
    name = run.experiment.data.name
    file = str(run.path / "experiment.toml")
    device = _device(run)
    words = [["run", file, *(["--device", device] if device else []), *given, *modules]]
    if name in DATASETS and not DATASETS[name].built_in:
        words.insert(0, ["data", "get", name, *given])
    return [shlex.join(["fedrfq", *command]) for command in words]


def _in_python(run: RunData, typed: Sequence[str], files: Sequence[str]) -> list[str]:
    arguments = [repr(str(run.path / "experiment.toml"))]
    if _device(run):
        arguments.append(repr(_device(run)))
    said = ["import fedrfq"]
    said += [f"fedrfq.load_plugin({file!r})" for file in files]
    said += [f"# register {name!r} as the notebook did" for name in typed]
    if is_given(run.experiment.data.name):
        sha256 = run.environment["data"].get("sha256", "unknown")
        said.append(f"# data: {run.experiment.data.name!r} with sha256 {sha256!r:.70}")
        arguments.append("data=data")
    sources = given_modules.sources(run.experiment)
    if sources:
        said.append(f"# model: {', '.join(map(repr, sources))}")
        arguments.append("model=model")
    return [*said, f"fedrfq.run({', '.join(arguments)}).finish()"]


def _device(run: RunData) -> str:
    """Return the kind of device that the run had, or "" where it is not known."""
    kind = run.environment.get("device_type")
    return str(kind) if kind in ("cpu", "cuda", "mps") else ""
