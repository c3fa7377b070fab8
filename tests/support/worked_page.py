"""Run the commands of the page with four hospitals, as they stand.

A block that begins with `# each hospital` is run for hospitals a to d, with the names and the
address of each. `fedrfq server` and `fedrfq client` are left running until `systemctl stop`; all
else must end well. Whoever joins is asked for the run's id, and types what `fedrfq committee init`
printed. Nothing is installed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fedrfq.data import Dataset
from fedrfq.node.ops.child_processes import Child, stop
from support.paths import ROOT

PAGE = ROOT / "docs" / "guides" / "four-hospitals.md"
HOSPITALS = "abcd"
PATIENCE_S = 240.0
EACH = "# each hospital"
# What is a hospital's own on the page, written for hospital A.
_OWN = re.compile(r"\b(hospital|ward|scans)-a\b")
_PARTY = re.compile(r"\b(?:hospital|ward|server|client)-[a-e0-9]\b(?!\.toml)")
_SPOKEN = re.compile(r"all at once: ([0-9a-f ]+)$", re.MULTILINE)
_LASTING = ("fedrfq server ", "fedrfq client ")
_STOP = "systemctl stop "
_INSTALL = "pip install "


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the language and the lines of each block of code."""
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield language, code.splitlines()


class WorkedPage:
    """The page's commands in one folder.

    `prefix` is what stands before the commands of a party (of "" for nobody's), such as a change of
    user; `handed_over` is called when somebody may have put files into others' folders. `replaced`
    are texts of the page to replace, such as addresses.
    """

    def __init__(
        self,
        folder: Path,
        replaced: Mapping[str, str],
        prefix: Callable[[str], Sequence[str]] = lambda party: (),
        handed_over: Callable[[], None] = lambda: None,
        python: str = sys.executable,
    ) -> None:
        self.folder = folder
        self.replaced = replaced
        self.prefix = prefix
        self.handed_over = handed_over
        self.python = python
        self.lasting: dict[str, Child] = {}
        # The commands that were run, and what each printed; `fedrfq` only.
        self.ran: list[tuple[str, str]] = []
        self.began = time.monotonic()

    def run_block(self, lines: Sequence[str]) -> None:
        """Run the commands of a block."""
        hospitals = HOSPITALS if lines[0] == EACH else "a"
        for hospital in hospitals:
            for line in lines:
                if line.startswith(("#", _INSTALL)):
                    continue
                own = _OWN.sub(rf"\1-{hospital}", line)
                if hospital != "a":
                    own = own.replace("7400", str(7400 + HOSPITALS.index(hospital)))
                self.run(own)

    def run(self, line: str) -> None:
        """Run one command, or start it if it lasts."""
        for old, new in self.replaced.items():
            line = line.replace(old, new)
        words = shlex.split(line)
        parties = set(_PARTY.findall(line))
        # What concerns several parties is done by somebody who was sent their files.
        name = parties.pop() if len(parties) == 1 else ""
        if line.startswith(_STOP):
            stop([self.lasting.pop(name)])
            return
        if line.startswith("fedrfq committee status"):
            self.until(lambda: self.serves(name), f"the status of {name}")
        # Folders on the page are relative.
        command = ["env", "-C", str(self.folder), *self.prefix(name), *self._program(words)]
        if line.startswith(_LASTING):
            keyboard = self._keyboard(name)
            command = ["sh", "-c", f'exec "$@" <>{shlex.quote(str(keyboard))}', "sh", *command]
            child = Child(name, command, self.folder / "logs" / name, self._environment())
            child.start()
            self.lasting[name] = child
            self.ran.append((line, ""))
            return
        done = subprocess.run(
            command,
            env={**os.environ, **self._environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if not name:
            self.handed_over()
        if words[0] == "fedrfq":
            self.ran.append((line, done.stdout))

    def _keyboard(self, party: str) -> Path:
        """Return a pipe from which a lasting command reads what somebody types."""
        path = self.folder / "keyboards" / party
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            os.mkfifo(path)
        return path

    def requests(self) -> int:
        """Return how many parties have asked to take part."""
        return len(list((self.folder / "consortium" / "requests").glob("*.toml")))

    def type_the_id(self) -> None:
        """Type the id that the founder was shown to every party that waits for it."""
        _, printed = self.ran[-1]
        (spoken,) = _SPOKEN.findall(printed)
        for party in self.lasting:
            (self.folder / "keyboards" / party).write_text(f"{spoken}\n", encoding="ascii")

    def _program(self, words: list[str]) -> list[str]:
        if words[0] == "fedrfq":
            return [self.python, "-m", "fedrfq.cli", *words[1:]]
        return words

    def _environment(self) -> dict[str, str]:
        paths = [str(ROOT / "src"), *(path for path in sys.path if "site-packages" in path)]
        return {"HOME": str(self.folder), "PYTHONPATH": os.pathsep.join(paths)}

    def certified(self, party: str) -> int:
        """Return the last round that a client knows to be certified, over all runs."""
        path = self.folder / party / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def await_another_round(self, ward: str) -> None:
        """Wait until a client knows of a round more than now."""
        before = self.certified(ward)
        self.until(lambda: self.certified(ward) > before, f"a round with {ward} again")

    def until(self, what: Callable[[], bool], about: str) -> None:
        """Wait until something has come about, while nothing fails."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            for child in self.lasting.values():
                assert child.running, f"{child.name} has ended:\n{child.output.read_text()}"
            assert time.monotonic() < deadline, f"it did not come about: {about}"
            time.sleep(0.1)

    def serves(self, party: str) -> bool:
        """Return whether a party has its status page since it was started."""
        path = self.folder / party / "status.json"
        # All that is before a command replaces itself by it.
        return path.exists() and json.loads(path.read_text())["pid"] == self.lasting[party].pid

    def changed(self, number: int) -> bool:
        """Return whether all parties that run have gone on after this change."""
        past = [self.folder / party / "past" / str(number) for party in self.lasting]
        return all((path / "last.bin").exists() for path in past) and all(
            map(self.serves, self.lasting)
        )

    def lose(self, hospital: str) -> None:
        """Lose a hospital's machine, with its server and its ward."""
        for party in (f"ward-{hospital}", f"hospital-{hospital}"):
            child = self.lasting.pop(party)
            child.kill()
            shutil.rmtree(self.folder / party)

    def stop(self) -> None:
        """Stop all parties."""

        def of(*roles: str) -> list[Child]:
            return [child for name, child in self.lasting.items() if name.startswith(roles)]

        stop(of("client", "ward"))
        stop(of("server", "hospital"))


def play(page: WorkedPage) -> Iterator[str]:
    """Run the whole page, and yield the name of each stage that has come about."""
    wards = [f"ward-{hospital}" for hospital in HOSPITALS]
    for language, lines in blocks(PAGE.read_text(encoding="utf-8")):
        if language != "sh":
            continue
        first = lines[0]
        if "ward-e/past/1" in first:
            page.until(lambda: page.changed(1), "the change")
            yield "changed"
        elif "hospital-d/past/1" in first:
            page.until(lambda: page.changed(2), "the second change")
        elif first.startswith("fedrfq keys new hospital-d"):
            page.lose("d")
        elif first.startswith("fedrfq verify"):
            page.stop()
        # The federation of the page has no public map.
        elif "--threshold" in first:
            return
        founding = first.startswith("fedrfq committee init")
        if founding:
            page.until(lambda: page.requests() == 2 * len(HOSPITALS), "the requests")
        page.run_block(lines)
        if founding:
            page.type_the_id()
            page.until(lambda: all(page.certified(ward) for ward in wards), "the first round")
            yield "first round"
        elif lines[-1].endswith("--data scans-e"):
            page.until(lambda: page.certified("ward-e") >= 1, "a round with the fifth")
            yield "joined"
        elif lines[-1].startswith("fedrfq client") and first != EACH:
            page.await_another_round("ward-" + lines[-1][-1])
            yield "upgraded" if lines[-1].endswith("-a") else "restored"


def make_scans(folder: Path, dataset: Dataset, hospital: int, classes: Sequence[str]) -> None:
    """Write a hospital's own pictures, in a folder for each class; no two hospitals share one."""
    per_class = 12
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        found = np.flatnonzero(dataset.train_y == label)[hospital * per_class :][:per_class]
        for number, index in enumerate(found):
            picture = Image.fromarray(np.asarray(dataset.train_x[index]).reshape(28, 28))
            picture.save(folder / name / f"{number}.png")
