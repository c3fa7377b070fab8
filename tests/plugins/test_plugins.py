"""Plugins: registered from outside, recorded with runs, found again, and never run unasked."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedrfq
from fedrfq import plugins
from fedrfq.api.new_plugin import write
from fedrfq.data.content import Content
from fedrfq.data.partition import Partition
from fedrfq.errors import UserError
from fedrfq.experiment import from_table
from fedrfq.files import toml
from fedrfq.flower.trust import experiment_of
from fedrfq.plugins import PluginMissing, known
from fedrfq.report import comparison_page
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.rules import RULES
from fedrfq.runs.find_runs import runs_in
from fedrfq.runs.run_directory import RunDirectory
from support.command import fedrfq as command
from support.command import only_run, sets
from support.outside import LARGEST, PULL, new_process, typed, written
from support.paths import ROOT

TINY = ["clients=4", "rounds=2", "model.name=mlp", "partition.shots=4", "partition.test_shots=3"]
# A plugin that tells when its code runs.
TELLING = "open({marker!r}, 'w').close()\n" + PULL


def trained(tmp_path: Path, *more: str) -> Path:
    """Return a run of the method that pull.py registers."""
    path = written(tmp_path, "pull.py", PULL)
    out = tmp_path / "runs"
    command("run", "--plugin", path, *sets([*TINY, "method.name=pull", *more]), "--out", out)
    return only_run(out).path


# Registered and recorded


def test_a_run_records_its_plugin_and_every_command_finds_it_again(tmp_path: Path) -> None:
    run = trained(tmp_path)
    recorded = toml.read(run / "experiment.toml")["plugins"]
    sha256 = hashlib.sha256(PULL.encode()).hexdigest()
    assert recorded == [{"name": "pull.py", "sha256": sha256}]
    (tmp_path / "pull.py").unlink()
    for word in ("show", "resume"):
        new_process()
        command(word, run)
    new_process()
    assert "pull" in command("config", run / "experiment.toml").stdout


def test_the_plugin_is_part_of_the_runs_identity(tmp_path: Path) -> None:
    fedrfq.load_plugin(written(tmp_path, "pull.py", PULL))
    one = fedrfq.load(sets=["method.name=pull"])
    other = fedrfq.load(sets=["method.name=fedproto"])
    fedrfq.load_plugin(written(tmp_path, "pull.py", PULL + "# changed\n"))
    two = fedrfq.load(sets=["method.name=pull"])
    # Each experiment goes on to say what it was made with.
    assert one.hash() != two.hash()
    assert from_table(one.table(), exact=False).hash() == one.hash()
    assert "plugins" not in other.table()


def test_a_name_in_an_option_counts_as_use(tmp_path: Path) -> None:
    """The attack that `sleeper` wakes to stands in `attack.then`."""
    text = (
        "from dataclasses import dataclass\nimport fedrfq\n"
        "from fedrfq.robust.attacks.sign_flip import SignFlip\n"
        "@fedrfq.register('attack', 'flip')\n@dataclass(frozen=True)\nclass Flip(SignFlip): pass\n"
    )
    fedrfq.load_plugin(written(tmp_path, "flip.py", text))
    used = fedrfq.load(sets=["attack.name=sleeper", "attack.then=flip", "attack.clients=1"])
    assert [row["name"] for row in used.table()["plugins"]] == ["flip.py"]


TRAINING = """
import sys
if __name__ == "__main__":
    run = fedrfq.run({settings}, "cpu", "runs") if len(sys.argv) < 2 else fedrfq.resume(sys.argv[1])
    next(iter(run))
    print(run.path)
"""
SCRIPT = PULL + TRAINING.format(
    settings={
        "clients": 4,
        "rounds": 3,
        "checkpoint": 1,
        "method": {"name": "pull"},
        "model": {"name": "mlp"},
        "partition": {"shots": 4, "test_shots": 3},
    }
)


def ran(script: Path, *words: object) -> Path:
    """Run a script as the user does, and return the path that it prints."""
    done = subprocess.run(
        [sys.executable, script.name, *map(str, words)],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return script.parent / done.stdout.strip()


def test_a_script_is_known_by_what_it_registers_not_by_all_that_it_does(tmp_path: Path) -> None:
    script = written(tmp_path, "train.py", SCRIPT)
    run = ran(script)
    (row,) = toml.read(run / "experiment.toml")["plugins"]
    assert row["name"] == "method pull of train.py"
    # A command does not run a script again by itself: it may train.
    assert not plugins.remembered_folder().exists()
    assert "give it with --plugin train.py" in command("show", run, expect=2).stderr
    # What it does besides may be changed, and the run goes on.
    written(tmp_path, "train.py", SCRIPT.replace('"cpu"', '"auto"'))
    assert ran(script, run) == run
    for words in (["show", run, "--plugin", script], ["resume", run], ["report", run]):
        new_process()
        command(*words)
    # A run that the file was given to is another one, and both are known in one process.
    command("run", "--plugin", script, *sets([*TINY, "method.name=pull"]), "--out", tmp_path / "r")
    other = only_run(tmp_path / "r")
    (whole,) = other.experiment().table()["plugins"]
    assert whole["name"] == "train.py"
    assert RunDirectory.open(run).experiment().table()["plugins"] == [row]
    assert other.experiment().table()["plugins"] == [whole]


def test_a_script_that_registers_something_else_now_is_refused(tmp_path: Path) -> None:
    script = written(tmp_path, "train.py", SCRIPT)
    run = ran(script)
    written(tmp_path, "train.py", SCRIPT.replace(".abs()", ".square()"))
    new_process()
    error = command("resume", run, "--plugin", script, expect=2).stderr
    assert "method pull of train.py is not what this run began with" in error
    new_process()
    command("show", run, "--plugin", script)


def test_a_script_that_trains_as_it_is_read_is_told_where_that_belongs(tmp_path: Path) -> None:
    for call in ("run()", "resume('latest')", "compare({'seeds': 1})"):
        new_process()
        script = written(tmp_path, "train.py", f"{PULL}\nfedrfq.{call}\n")
        with pytest.raises(UserError, match=r'below `if __name__ == "__main__":`'):
            fedrfq.load_plugin(script)


def test_what_comes_from_a_pipe_is_to_be_put_into_a_file() -> None:
    done = subprocess.run([sys.executable], input=PULL, capture_output=True, text=True, check=False)
    assert "UserError: the source of method 'pull' cannot be read" in done.stderr
    assert "put it into a file" in done.stderr


def test_what_a_notebook_registered_may_be_put_into_a_file(tmp_path: Path) -> None:
    typed(PULL, {"__name__": "__main__"})
    used = fedrfq.load(sets=["method.name=pull"]).table()
    new_process()
    with pytest.raises(PluginMissing, match="or give a file with it by --plugin"):
        from_table(used)
    push = PULL.replace("pull", "push").replace("Pull", "Push")
    fedrfq.load_plugin(written(tmp_path, "mine.py", PULL + push))
    # Also where no copy can be kept.
    (copy,) = plugins.remembered_folder().iterdir()
    copy.unlink()
    assert from_table(used).table() == used
    # Of what else is in the file, the run knows nothing.
    (row,) = fedrfq.load(sets=["method.name=push"]).table()["plugins"]
    assert row["name"] == "mine.py"
    # A copy that was changed is not run for a class that is as it was.
    marker = tmp_path / "ran"
    copy.write_text(TELLING.format(marker=str(marker)))
    new_process()
    with pytest.raises(PluginMissing):
        from_table(used)
    assert not marker.exists()


@pytest.mark.parametrize("body", ["def distance(self, d_KBV): return {} * d_KBV", "lam = {}.0"])
def test_a_notebook_registers_and_may_do_so_again(body: str) -> None:
    """The hash is that of the class's own text, whatever else stands in its cell."""
    head, _, _ = PULL.partition("    def distance")
    rows = []
    for factor in (1, 1, 2):
        cell = f"{head}    {body.format(factor)}\nother = {len(rows)}\n"
        typed(cell, {"__name__": "__main__"})
        rows.append(fedrfq.load(sets=["method.name=pull"]).table()["plugins"][0])
    assert [row["name"] for row in rows] == ["notebook method pull"] * 3
    assert rows[0]["sha256"] == rows[1]["sha256"] != rows[2]["sha256"]
    with pytest.raises(PluginMissing, match="is not what this run began with"):
        from_table({"method": {"name": "pull"}, "plugins": [rows[0]]})


def test_what_has_no_source_is_refused() -> None:
    space: dict[str, object] = {"__name__": "cell"}
    with pytest.raises(UserError, match="the source of method 'pull' cannot be read"):
        exec(PULL, space)


def test_the_reference_has_all_that_one_derives_from() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    bases = [registry.base_class() for registry in plugins.REGISTRIES.values()]
    for base in (*filter(None, bases), Partition, Content):
        assert f"::: {base.__module__}.{base.__qualname__}\n" in page
        assert base.__doc__


# Missing and changed


def test_a_missing_plugin_is_named_and_others_are_reported(tmp_path: Path) -> None:
    run = trained(tmp_path)
    command("run", *sets([*TINY, "method.name=local"]), "--out", tmp_path / "runs")
    shutil.rmtree(tmp_path / "config")
    new_process()
    error = command("show", run, expect=2).stderr
    assert "needs the plugin pull.py (sha256 " in error
    assert "give it with --plugin pull.py" in error
    assert error.count("\n") == 1
    page = comparison_page.page(runs_in([tmp_path / "runs"]))
    assert "1 runs, 1 settings" in page.subtitle
    assert "Left out:" in page.head
    with pytest.raises(UserError, match=f"{run / 'experiment.toml'}: this needs the plugin"):
        comparison_page.page([run])
    new_process()
    command("show", run, "--plugin", tmp_path / "pull.py")


def test_a_changed_plugin_may_be_shown_and_not_gone_on_with(tmp_path: Path) -> None:
    run = trained(tmp_path)
    changed = written(tmp_path, "pull.py", PULL + "# changed\n")
    new_process()
    error = command("resume", run, "--plugin", changed, expect=2).stderr
    assert "pull.py is not what this run began with" in error
    assert "leave out --plugin" in error
    new_process()
    command("show", run, "--plugin", changed)
    new_process()
    command("resume", run)
    # Where nobody remembers the first version either, the run can be shown and no more.
    shutil.rmtree(tmp_path / "config")
    new_process()
    command("show", run, "--plugin", changed)
    error = command("export", run, 0, expect=2).stderr
    assert "restore it, or start a new run" in error


def test_renamed_bytes_are_the_same_plugin(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (tmp_path / "config").rename(tmp_path / "gone")
    new_process()
    command("resume", run, "--plugin", written(tmp_path, "renamed.py", PULL))


# Nothing runs because a folder says so


def test_no_code_runs_because_a_folder_says_so(tmp_path: Path) -> None:
    run = trained(tmp_path, "committee.name=simulated")
    marker = tmp_path / "ran"
    text = TELLING.format(marker=str(marker))
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    for name in ("pull.py", f"{sha256}.py", f"plugins/{sha256}.py"):
        (run / name).parent.mkdir(exist_ok=True)
        written(run, name, text)
    table = toml.read(run / "experiment.toml")
    table["plugins"] = [{"name": str(run / "pull.py"), "sha256": sha256}]
    (run / "experiment.toml").write_text(toml.dump(table))
    for words in (["show"], ["resume"], ["report"], ["export", "0"]):
        new_process()
        command(words[0], run, *words[1:], expect=2)
    new_process()
    assert "is not the experiment" in command("verify", run, "--recompute", expect=1).stderr
    with pytest.raises(PluginMissing):
        experiment_of(toml.dump(table))
    assert not marker.exists()
    # It would have run, had the user given it.
    fedrfq.load_plugin(run / "pull.py")
    assert marker.exists()


def test_a_remembered_file_that_was_changed_is_not_run(tmp_path: Path) -> None:
    run = trained(tmp_path)
    marker = tmp_path / "ran"
    (copy,) = plugins.remembered_folder().iterdir()
    copy.write_text(TELLING.format(marker=str(marker)))
    new_process()
    assert "is not known here" in command("show", run, expect=2).stderr
    assert not marker.exists()


@pytest.mark.parametrize(
    "rows",
    [
        3,
        ["x"],
        [{"name": "a"}],
        [{"name": "a\n", "sha256": "0" * 64}],
        [{"name": "a", "sha256": "../../x"}],
        [{"name": "a", "sha256": "0" * 64}] * 65,
    ],
)
def test_hostile_rows_are_refused(rows: object) -> None:
    with pytest.raises(UserError):
        from_table({"plugins": rows})


# Installed packages


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an installed package whose entry point registers `pull`."""
    site = tmp_path / "site"
    (site / "pullpack").mkdir(parents=True)
    written(site / "pullpack", "__init__.py", "")
    written(site / "pullpack", "register.py", PULL)
    info = site / "pullpack-1.2.dist-info"
    info.mkdir()
    written(info, "METADATA", "Metadata-Version: 2.1\nName: pullpack\nVersion: 1.2\n")
    written(info, "entry_points.txt", f"[{plugins.GROUP}]\npull = pullpack.register\n")
    monkeypatch.syspath_prepend(str(site))
    for name in ("pullpack", "pullpack.register"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return site


def test_an_installed_package_is_found_by_itself(tmp_path: Path, package: Path) -> None:
    used = fedrfq.load(sets=["method.name=pull"]).table()
    assert [row["name"] for row in used["plugins"]] == ["package pullpack"]
    assert "package pullpack" in command("list", "methods").stdout
    written(package / "pullpack", "more.py", "# another file\n")
    new_process()
    for name in ("pullpack", "pullpack.register"):
        sys.modules.pop(name, None)
    with pytest.raises(PluginMissing, match="package pullpack is not what this run began with"):
        from_table(used)


def test_a_package_that_only_lies_in_the_current_folder_is_not_installed(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(package)
    with pytest.raises(UserError, match=r"method\.name must be one of"):
        fedrfq.load(sets=["method.name=pull"])


def test_a_package_may_be_a_folder_without_an_init(package: Path) -> None:
    (package / "pullpack" / "__init__.py").unlink()
    used = fedrfq.load(sets=["method.name=pull"]).table()
    assert [row["name"] for row in used["plugins"]] == ["package pullpack"]


def test_a_package_never_replaces_the_users_own_file(tmp_path: Path, package: Path) -> None:
    with pytest.raises(UserError, match=r"by package pullpack and by mine\.py"):
        fedrfq.load_plugin(written(tmp_path, "mine.py", PULL))


def test_a_relative_folder_of_settings_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "settings")
    assert plugins.remembered_folder().is_absolute()


def test_a_package_that_fails_does_not_stop_others(package: Path) -> None:
    written(package / "pullpack", "register.py", "import nothing_of_this_name\n")
    fedrfq.load(sets=["method.name=local"])
    assert "ModuleNotFoundError" in command("list", "methods").stderr


# What is refused


_DATACLASS = "from dataclasses import dataclass\nimport fedrfq\n"
_DETECTOR = (
    f"{_DATACLASS}from fedrfq.robust.detectors import Detector\n"
    "@fedrfq.register('detector', 'x')\n@dataclass(frozen=True)\n"
    "class X(Detector):\n    exact = True\n"
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "registers nothing"),
        ("1 / 0", r"line 1: ZeroDivisionError"),
        ("def f(:", r"line 1: SyntaxError"),
        ("import fedrfq; fedrfq.register('method', 'fedavg', object)", "is fedrfq's own"),
        ("import fedrfq; fedrfq.register('method', 'x', object)", "expected a subclass of fedrfq"),
        (
            f"{_DETECTOR}    def judge(self, state, uploads): ...\n",
            r"judge\(self, state, uploads\) is called as judge\(self, state, globals_, uploads\)",
        ),
        (
            f"{_DETECTOR}    def judge(self, state, globals_, uploads): ...\n"
            "    def start(self, clients, classes): ...\n",
            r"is called as start\(self, clients\): take these",
        ),
        (_DETECTOR, "it does not define judge"),
        (
            "import fedrfq; fedrfq.register('pooling', 'x', lambda c: c)",
            r"is called as <lambda>\(c, pool\)",
        ),
        (
            f"{_DATACLASS}@fedrfq.register('partition', 'x')\n@dataclass(frozen=True)\n"
            "class X:\n    def deal(self, dataset, rng): ...\n",
            r"is called as deal\(self, dataset, clients, rng\)",
        ),
        ("import fedrfq; fedrfq.register('methods', 'x', object)", "did you mean method"),
        ("import fedrfq; fedrfq.register('method', 'X y', object)", "cannot be named"),
        ("import fedrfq; fedrfq.register('dataset', 'x', object)", "expected a fedrfq.data.Source"),
        ("import fedrfq; fedrfq.register('partition', 'x', object)", "deal"),
        ("import fedrfq; fedrfq.register('pooling', 'x', 3)", "a class or a function"),
        (
            PULL.replace("@dataclass(frozen=True)", "").replace(
                "    def",
                "    from fedrfq.files.options import option\n    a: int = option(1, 'A')\n    def",
            ),
            "put @dataclass",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(UserError, match=why) as caught:
        fedrfq.load_plugin(written(tmp_path, "mine.py", text))
    assert "\n" not in str(caught.value)
    assert not known.OWNERS


def test_two_plugins_of_one_name_are_refused(tmp_path: Path) -> None:
    fedrfq.load_plugin(written(tmp_path, "a.py", PULL))
    with pytest.raises(UserError, match=r"method 'pull' is registered by a\.py and by b\.py"):
        fedrfq.load_plugin(written(tmp_path, "b.py", PULL + "# other\n"))


def test_the_option_may_stand_anywhere(tmp_path: Path) -> None:
    path = written(tmp_path, "pull.py", PULL)
    for words in (
        ["--plugin", path, "list", "methods"],
        ["list", "--plugin", path, "methods"],
        ["list", "methods", f"--plugin={path}"],
    ):
        new_process()
        assert "pull.py" in command(*words).stdout
    new_process()
    assert "cannot read nowhere.py" in command("list", "--plugin", "nowhere.py", expect=2).stderr
    assert command("list", "--plugin", expect=2)


# What servers must agree on


def test_a_plugin_detector_decides_for_a_committee_and_is_recomputed(tmp_path: Path) -> None:
    path = written(tmp_path, "largest.py", LARGEST)
    settings = [*TINY, "detector.name=largest", "committee.name=simulated"]
    command("run", "--plugin", path, *sets(settings), "--out", tmp_path / "runs")
    run = only_run(tmp_path / "runs").path
    new_process()
    assert "recomputed" in command("verify", run, "--recompute").stdout
    changed = written(tmp_path, "largest.py", LARGEST + "# changed\n")
    new_process()
    assert "is not what" in command("verify", run, "--plugin", changed, expect=2).stderr


def test_an_auditor_needs_only_the_plugins_that_decided(tmp_path: Path) -> None:
    paths = [written(tmp_path, "pull.py", PULL), written(tmp_path, "largest.py", LARGEST)]
    given = [word for path in paths for word in ("--plugin", path)]
    settings = [*TINY, "method.name=pull", "detector.name=largest", "committee.name=simulated"]
    command("run", *given, *sets(settings), "--out", tmp_path / "runs")
    run = only_run(tmp_path / "runs").path
    # As on another machine.
    shutil.rmtree(tmp_path / "config")
    new_process()
    assert "needs the plugin largest.py" in command("verify", run, expect=2).stderr
    new_process()
    said = command("verify", run, "--recompute", "--plugin", paths[1])
    assert "recomputed" in said.stdout
    assert "pull" in command("resume", run, "--plugin", paths[1], expect=2).stderr
    # Another plugin of this name is not the one that decided.
    other = written(tmp_path, "other.py", LARGEST + "# other\n")
    shutil.rmtree(tmp_path / "config")
    new_process()
    error = command("verify", run, "--plugin", other, expect=2).stderr
    assert "needs the plugin largest.py" in error


def test_a_cell_is_read_for_floating_point_as_a_file_is() -> None:
    typed(LARGEST.replace("claimed_K = ", "claimed_K = 1 / 2 + "), {"__name__": "__main__"})
    with pytest.raises(UserError, match=r"the notebook's cell, line 13: / divides in floating"):
        fedrfq.load(sets=["detector.name=largest", "committee.name=simulated"])


@pytest.mark.parametrize("claim", ["", "exact: ClassVar[bool] = False"])
def test_a_detector_that_is_not_exact_is_for_one_server(tmp_path: Path, claim: str) -> None:
    """Also one that inherits from a detector which is."""
    text = LARGEST.replace("exact: ClassVar[bool] = True", claim).replace(
        "import Detector, Verdict",
        "import Verdict\nfrom fedrfq.robust.detectors.none import NoDetection as Detector",
    )
    fedrfq.load_plugin(written(tmp_path, "largest.py", text))
    fedrfq.load(sets=["detector.name=largest"])
    fedrfq.load(sets=["detector.name=largest", "committee.name=simulated", "committee.servers=1"])
    with pytest.raises(UserError, match="does not say that it is exact"):
        fedrfq.load(sets=["detector.name=largest", "committee.name=simulated"])


def test_all_that_the_package_itself_decides_by_is_exact() -> None:
    for kind in DETECTORS.values():
        assert kind.exact, kind
        assert all(kind().rule(name).exact for name in RULES), kind


def test_a_server_step_must_be_declared(tmp_path: Path) -> None:
    step = "    def server_step(self, server, *rest): return server, rest[1]\n"
    fedrfq.load_plugin(written(tmp_path, "pull.py", PULL + step))
    with pytest.raises(UserError, match="declare `trains_server = True`"):
        fedrfq.load(sets=["method.name=pull"])


# What plugins may give that is not as it should


def test_a_partition_that_leaves_a_client_with_nothing_is_named(tmp_path: Path) -> None:
    text = """
from dataclasses import dataclass
import numpy as np
import fedrfq
from fedrfq.data.partition import Partition

@fedrfq.register("partition", "uneven")
@dataclass(frozen=True)
class Uneven:
    def deal(self, dataset, clients, rng):
        own = [np.arange(20)] * (clients - 1) + [np.arange(0)]
        return Partition.of(dataset, own, own)
"""
    path = written(tmp_path, "uneven.py", text)
    words = ("run", "--plugin", path, "--set", "partition.name=uneven", "--set", "clients=3")
    error = command(*words, "--out", tmp_path / "runs", expect=2).stderr
    assert "the partition Uneven gives client 2 0 training and 0 test samples" in error
    written(tmp_path, "uneven.py", text.replace("(clients - 1)", "clients"))
    new_process()
    error = command(*words, "--out", tmp_path / "runs", expect=2).stderr
    assert "the partition Uneven must deal to 3 clients" in error
    assert not (tmp_path / "runs").exists()


def test_a_plugins_options_are_held_to_their_ranges(tmp_path: Path) -> None:
    """Also where it does nothing for that, as a partition and a class with its own checks."""
    text = """
from dataclasses import dataclass
import fedrfq
from fedrfq.files.options import option
from fedrfq.methods.fedproto import FedProto

@fedrfq.register("partition", "uneven")
@dataclass(frozen=True)
class Uneven:
    most: int = option(5, "The most samples of a client", "1 to 9")
    def deal(self, dataset, clients, rng): ...

@fedrfq.register("method", "sharp")
@dataclass(frozen=True)
class Sharp(FedProto):
    sharp: float = option(1.0, "How sharp", "above 0")
    def __post_init__(self):
        1 / self.sharp
"""
    fedrfq.load_plugin(written(tmp_path, "mine.py", text))
    with pytest.raises(UserError, match=r"partition\.most must be 1 to 9, not 10"):
        fedrfq.load(sets=["partition.name=uneven", "partition.most=10"])
    with pytest.raises(UserError, match=r"method\.sharp must be above 0, not 0\.0"):
        fedrfq.load(sets=["method.name=sharp", "method.sharp=0"])


def test_a_tracker_of_ones_own_is_recorded_and_changes_no_hash(tmp_path: Path) -> None:
    write("tracker", "lines", tmp_path)
    fedrfq.load_plugin(tmp_path / "lines.py")
    plain = fedrfq.load(sets=TINY)
    watched = fedrfq.load(sets=[*TINY, "track=lines"])
    assert [row["name"] for row in watched.table()["plugins"]] == ["lines.py"]
    assert watched.hash() == plain.hash()
    assert "lines" in command("list", "trackers").stdout
