"""Fuzz every command that reads a folder somebody else may have written.

    python bench/fuzz_folders.py --minutes 60 --seed 0 --out results/folders/fuzz.json

A real run with a committee, a real federation's folders, an .npz and folders of images are made
once. Each case copies one of them, changes a few files (into pipes, devices, links, folders, sparse
terabytes, damaged bytes, hostile values), and runs a command on it in a process of its own. What is
more than an error on one line is found: a traceback, a hang, a lack of memory, gigabytes of output,
and whatever changes outside of the folder.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
# One thread: children are forked, and threads do not survive that.
os.environ["OMP_NUM_THREADS"] = "1"

TERABYTE = 1 << 40
# A case may compute this long, wait this long, and take this much beyond the program itself. Not
# the time on the wall: on a loaded machine that says nothing.
MAX_CPU_SECONDS = 120
MAX_IDLE_SECONDS = 120
MAX_EXTRA_BYTES = 3 << 29
MAX_OUTPUT_BYTES = 1 << 24
EXIT_CODES = (0, 1, 2, 3)
CRASHED = 70
# These last until somebody interrupts them. Once they have nothing to do, they are visited, if they
# have a page, and interrupted.
LASTING = ("watch", "client", "server", "forget")
QUIET_SECONDS = 1.5
INTERRUPTED = 130
# What `watch` says instead of showing what it did not expect.
UNSHOWN = "cannot be shown"

SETTINGS = [
    "clients=4",
    "rounds=3",
    "checkpoint=1",
    "partition.shots=6",
    "partition.test_shots=4",
    "committee.name=simulated",
    "public.name=random",
]
CONTRACT = ["--classes", "class 0,class 1,class 2", "--shape", "1x28x28", "--window", "0:255"]
# What a case runs: the folder that is copied and changed, and the command on it.
CASES = [
    ("run", ["show", "{it}"]),
    ("run", ["report", "{it}"]),
    ("run", ["report", "{it}", "{other}", "--out", "{scratch}/report.html"]),
    ("run", ["resume", "{it}"]),
    ("run", ["predict", "{it}", "0", "{image}"]),
    ("run", ["export", "{it}", "1"]),
    ("run", ["verify", "{it}", "--recompute"]),
    ("run", ["evidence", "{it}"]),
    ("run", ["watch", "{it}"]),
    ("run", ["audit-privacy", "{it}", "--shadows", "4", "--questions", "100", "--pictures", "1"]),
    ("cluster/server-0", ["verify", "{it}", "--recompute"]),
    ("cluster/server-0", ["evidence", "{it}", "--export", "{scratch}/proofs.bin"]),
    ("cluster/server-0", ["committee", "status", "{it}"]),
    ("cluster/server-0", ["doctor", "{it}", "--timeout", "0.1"]),
    ("cluster/client-0", ["verify", "{it}"]),
    ("cluster/client-0", ["predict", "{it}", "0", "{image}"]),
    ("cluster/client-0", ["doctor", "{it}", "--timeout", "0.1"]),
    ("images", ["data", "info", "{it}"]),
    ("images", ["run", "--set", "data.name={it}", "--set", "rounds=1", "--out", "{scratch}"]),
    ("images", ["committee", "init", "{scratch}/new", "--servers", "1", "--like", "{it}"]),
    ("labelled", ["data", "info", "{it}"]),
    ("labelled", ["committee", "init", "{scratch}/new", "--servers", "1", "--like", "{it}"]),
    ("arrays", ["data", "info", "{it}/data.npz"]),
    ("arrays", ["committee", "init", "{scratch}/new", "--like", "{it}/data.npz"]),
    ("arrays", ["predict", "{other}", "0", "{it}/image.png"]),
    # The same data under a data contract, which says how they are read.
    (
        "images",
        ["doctor", "{ward}", "--data", "{it}", "--timeout", "0.1", "--page", "{scratch}/it.html"],
    ),
    ("labelled", ["doctor", "{ward}", "--data", "{it}", "--timeout", "0.1"]),
    ("arrays", ["doctor", "{ward}", "--data", "{it}/data.npz", "--timeout", "0.1"]),
    ("deep", ["doctor", "{ward}", "--data", "{it}", "--timeout", "0.1"]),
    ("consortium/client-0", ["doctor", "{it}", "--data", "{images}", "--timeout", "0.1"]),
    ("asked", ["committee", "init", "{it}", *CONTRACT]),
    ("asked", ["committee", "add", "{scratch}/new", "{it}/requests/hospital.toml"]),
    ("asked", ["runs", "{it}"]),
    ("runs", ["runs", "{it}"]),
    ("runs", ["watch", "{it}"]),
    ("cluster/server-0", ["watch", "{it}"]),
    # A client asks to be forgotten, and has been: then a server may purge what it sent.
    ("leaving/client-0", ["forget", "{it}"]),
    ("revocable/server-0", ["committee", "purge", "{it}", "client-1"]),
    # A folder that anybody may write to. Nobody types the federation's id.
    ("founded", ["client", "{scratch}/ward", "--data", "{images}", "--join", "{it}"]),
    (
        "founded",
        ["server", "{scratch}/hospital", "--address", "127.0.0.1:7400", "--join", "{it}"],
    ),
]

HOSTILE_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "=1+1",
    "\x1b[2J",
    "../../outside",
    "/dev/zero",
    "x" * 100_000,
    [],
    {},
    [[[[]]]],
    {"": {"a": [None]}},
]


def made(home: Path) -> Path:
    """Make the folders that cases start from."""
    seeds = home / "seeds"
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    _command("run", *sets, "--out", seeds / "runs")
    (run,) = (seeds / "runs").glob("*/*")
    shutil.copytree(run, seeds / "run")
    _command("local-cluster", seeds / "cluster", "--clients", "3", "--rounds", "2")
    _command("committee", "init", seeds / "consortium", "--servers", 1, "--clients", 1, *CONTRACT)
    _command("keys", "new", seeds / "hospital", "--name", "hospital", "--address", "127.0.0.1:7400")
    _command("keys", "new", seeds / "ward", "--name", "ward")
    requests = [seeds / name / "request.toml" for name in ("hospital", "ward")]
    _command("committee", "add", seeds / "asked", *requests)
    shutil.copytree(seeds / "asked", seeds / "founded")
    _command("committee", "init", seeds / "founded", *CONTRACT)
    _make_revocable(seeds / "leaving", forgets=False)
    _make_revocable(seeds / "revocable", forgets=True)
    _make_data(seeds)
    shutil.copytree(seeds / "run", seeds / "other")
    return seeds


def _command(*arguments: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "fedrfq.cli", *map(str, arguments)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _make_revocable(folder: Path, forgets: bool) -> None:
    """Make a federation whose clients can leave, after a round, or two with one that has left."""
    from fedrfq.federation.retained import withdrawal
    from support.committees import PUBLIC, some_settings, uploads
    from support.networked import CLIENTS, Networked

    public = replace(PUBLIC, revocable=True, every=0)
    network = Networked(folder, public)
    network.round(1)
    if forgets:
        sent = uploads(some_settings(CLIENTS, public=public), 2).encoded(2)
        sent[1] = withdrawal(2, 1, public)
        network.round(2, sent)
    network.close()


def _make_data(seeds: Path) -> None:
    import numpy as np
    from PIL import Image

    from fedrfq import data

    mnist = data.load("mnist5k")
    keep = np.concatenate([np.flatnonzero(mnist.train_y == label)[:20] for label in range(3)])
    images, labels = mnist.train_x[keep], mnist.train_y[keep]
    (seeds / "arrays").mkdir()
    parts = {"train_x": images, "train_y": labels, "test_x": images, "test_y": labels}
    np.savez_compressed(seeds / "arrays/data.npz", **parts)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = seeds / f"images/class {label}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(path)
    shutil.copy(seeds / "images/class 0/0.png", seeds / "arrays/image.png")
    _make_labelled(seeds / "labelled", sorted((seeds / "images").rglob("*.png")))
    # More than 8 bits a pixel.
    for path in sorted((seeds / "images").rglob("*.png")):
        deep = seeds / "deep" / path.relative_to(seeds / "images").with_suffix(".tiff")
        deep.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(Image.open(path)).astype(np.uint16) * 200).save(deep)


def _make_labelled(folder: Path, pictures: list[Path]) -> None:
    """Make a folder of pictures whose classes are in a table."""
    folder.mkdir()
    rows = ["file,label"]
    for picture in pictures:
        shutil.copy(picture, folder / picture.name)
        rows.append(f"{picture.name},{picture.parent.name}")
    (folder / "labels.csv").write_text("\n".join([*rows, ""]), encoding="utf-8")


# What is done to a file


def put_pipe(path: Path, rng: random.Random) -> None:
    """Put a pipe without a writer there."""
    os.mkfifo(path)


def put_socket(path: Path, rng: random.Random) -> None:
    """Put a socket there."""
    # The path of a socket must be short.
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"/proc/self/fd/{os.open(path.parent, os.O_RDONLY)}/{path.name}"[-100:])


def put_device(path: Path, rng: random.Random) -> None:
    """Put /dev/zero itself there, or a link where that is not permitted."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def put_link(path: Path, rng: random.Random) -> None:
    """Put a link there, to something outside."""
    outside = path.parents[_depth(path)] / "outside"
    targets = [outside, outside / "run", outside / "file", "/dev/zero", "/etc/passwd", path, "none"]
    inside = outside / "run" / path.name
    path.symlink_to(rng.choice([*targets, inside, inside]))


def put_folder(path: Path, rng: random.Random) -> None:
    """Put a folder there."""
    path.mkdir()
    (path / "round-000009.safetensors").write_bytes(b"x")


def put_hole(path: Path, rng: random.Random) -> None:
    """Put a terabyte of nothing there."""
    path.touch()
    os.truncate(path, rng.choice([TERABYTE, 1 << 33, 1 << 28]))


def put_nothing(path: Path, rng: random.Random) -> None:
    """Leave the file away."""


def put_text(path: Path, rng: random.Random) -> None:
    """Put a text there that is hard to parse."""
    path.write_text(
        rng.choice(
            [
                "",
                "[" * 200_000,
                '{"a":' * 100_000,
                "a" + ".a" * 100_000 + " = 1",
                "x" * (1 << 24),
                "\n" * (1 << 22),
                ",".join("1" * (1 << 20)),
                "9" * 100_000,
                "\0" * 100,
                "\ufeff{}",
                "round,client\n" + '"' * 100_000,
            ]
        ),
        encoding="utf-8",
    )


INSTEAD = [
    put_pipe,
    put_socket,
    put_device,
    put_link,
    put_link,
    put_folder,
    put_hole,
    put_nothing,
    put_text,
]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes, changed in a few places, cut or repeated."""
    data = data[: 1 << 22]
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice([1, 1, 4, 64, 4096]))
        piece = rng.choice([b"", rng.randbytes(to - at), data[at:to] * 2, b"\xff" * 8, b"\0" * 64])
        data = data[:at] + piece + data[to:]
    return data


def with_other_value(data: bytes, rng: random.Random) -> bytes:
    """Return lines of JSON, TOML or CSV, or a safetensors file, with a hostile value in it."""
    if data[:1] == b"{":
        return _with_other_json(data, rng)
    if data[8:9] == b"{":
        size = int.from_bytes(data[:8], "little")
        header = _with_other_json(data[8 : 8 + size] + b"\n", rng)
        return len(header).to_bytes(8, "little") + header + data[8 + size :]
    # A word or number of a text.
    words = list(re.finditer(rb'"[^"\n]*"|[\w.+-]+', data[: 1 << 20]))
    if not words:
        return data
    word = rng.choice(words)
    value = _text(rng.choice(HOSTILE_VALUES)).encode()
    return data[: word.start()] + value + data[word.end() :]


def _with_other_json(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    text = data if lines[0] in (b"{", b"[") else lines[number]
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return damaged(data, rng)
    place: Any = table
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = rng.choice(keys)
        if not isinstance(place[key], dict | list) or rng.random() < 0.3:
            place[key] = rng.choice(HOSTILE_VALUES)
            break
        place = place[key]
    changed = _text(table).encode()
    if text is data:
        return changed
    return b"\n".join([*lines[:number], changed, *lines[number + 1 :]])


def _text(value: Any) -> str:
    return json.dumps(value)


def with_hole(data: bytes, path: Path) -> None:
    """Let the file go on with a terabyte of nothing."""
    path.write_bytes(data)
    os.truncate(path, len(data) + TERABYTE)


def change(folder: Path, rng: random.Random) -> str:
    """Change one file or folder below `folder`, and say how."""
    paths = sorted(path for path in folder.rglob("*") if not path.is_symlink())
    if not paths:
        return "nothing was left"
    path = rng.choice(paths)
    if path.is_file() and stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size < TERABYTE:
        data = path.read_bytes()[: 1 << 24]
        kind = rng.randrange(8)
        if kind < 2:
            path.write_bytes(damaged(data, rng))
            return f"damaged {path.name}"
        if kind < 5:
            path.write_bytes(with_other_value(data, rng))
            return f"with_other_value {path.name}"
        if kind == 5:
            with_hole(data, path)
            return f"with_hole {path.name}"
    how: Callable[[Path, random.Random], None] = rng.choice(INSTEAD)
    _remove(path)
    how(path, rng)
    return f"{how.__name__} {path.name}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _depth(path: Path) -> int:
    """Return how many folders below its case's folder a path is."""
    return [parent.name for parent in path.parents].index("case")


# One case


class Found(NamedTuple):
    """How a command ended, and what is wrong with that, if anything."""

    code: int
    wrong: str
    output: str


def run_case(command: list[str], scratch: Path, base_bytes: int) -> Found:
    """Run a command in a forked process, and judge how it ended."""
    output = scratch / "output"
    page = scratch / "page"
    child = os.fork()
    if not child:
        _be_the_program(command, output, scratch)
    ended, most_bytes = _awaited(child, output, command[0] in LASTING)
    text = output.read_text(encoding="utf-8", errors="replace")[-20_000:]
    extra = most_bytes - base_bytes
    wrong = ""
    if extra > MAX_EXTRA_BYTES:
        wrong = f"took {extra >> 20} MiB"
    elif ended is None:
        wrong = "hangs"
    elif ended == CRASHED:
        wrong = "traceback"
    elif page.exists() and UNSHOWN in page.read_text(encoding="utf-8"):
        wrong = UNSHOWN
    elif ended == INTERRUPTED and command[0] in LASTING:
        pass
    elif ended not in EXIT_CODES:
        wrong = f"ended with {ended}"
    elif "out of memory" in text:
        wrong = "out of memory"
    elif output.stat().st_size > MAX_OUTPUT_BYTES:
        wrong = "printed without end"
    return Found(ended or 0, wrong, text)


def _be_the_program(command: list[str], output: Path, scratch: Path) -> None:
    """Become the program in this forked process; never returns."""
    from fedrfq.cli import main

    code = CRASHED
    # A shell that starts the campaign in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(scratch)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        sys.argv = ["fedrfq", *command]
        main.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _awaited(child: int, output: Path, lasts: bool) -> tuple[int | None, int]:
    """Wait for the process; return its exit code, None if it had to be killed, and its memory.

    One that lasts is visited and interrupted as soon as it waits. A limit on its address space
    would be simpler, but drawing reserves more than it ever uses.
    """
    computed = 0.0
    progress = time.monotonic()
    interrupted = math.inf
    while computed < MAX_CPU_SECONDS and time.monotonic() - progress < MAX_IDLE_SECONDS:
        # What serves a page does a little again and again, and so is never idle.
        if time.monotonic() - interrupted > MAX_IDLE_SECONDS:
            break
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
        if _resident_bytes(child) > 2 * MAX_EXTRA_BYTES:
            break
        if _cpu_seconds(child) > computed:
            computed = _cpu_seconds(child)
            progress = time.monotonic()
        if lasts and time.monotonic() - progress > QUIET_SECONDS:
            _visit(output)
            os.kill(child, signal.SIGINT)
            lasts = False
            interrupted = time.monotonic()
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    _, _, usage = os.wait4(child, 0)
    return None, usage.ru_maxrss * 1024


def _visit(output: Path) -> None:
    """Ask for the pages of which a process has printed the address, and keep its state."""
    said = output.read_text(encoding="utf-8", errors="replace")
    address = re.search(r"http://127\.0\.0\.1:[0-9]+/", said)
    if address is None:
        return
    for page in ("", "state"):
        with urllib.request.urlopen(address[0] + page, timeout=MAX_IDLE_SECONDS) as answer:
            output.with_name("page").write_bytes(answer.read())


def _resident_bytes(child: int) -> int:
    pages = Path(f"/proc/{child}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _cpu_seconds(child: int) -> float:
    # The name, in brackets, may have blanks.
    fields = Path(f"/proc/{child}/stat").read_text(encoding="ascii", errors="replace")
    user, system = fields.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def fingerprint(folder: Path) -> dict[str, str]:
    """Return what is in a folder: names, kinds and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = ""
        if stat.S_ISREG(path.lstat().st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = f"{path.lstat().st_mode:o} {content}"
    return found


def fuzz(seeds: Path, home: Path, rng: random.Random, base_bytes: int) -> tuple[str, Found]:
    """Run one case; return what was done, and how it ended."""
    case = home / "case"
    shutil.rmtree(case, ignore_errors=True)
    start, template = rng.choice(CASES)
    it = case / Path(start).name
    shutil.copytree(seeds / start, it)
    shutil.copytree(seeds / "run", case / "outside/run")
    (case / "outside/file").write_bytes(b"mine")
    scratch = case / "scratch"
    scratch.mkdir()
    for party in ("ward", "hospital"):
        shutil.copytree(seeds / party, scratch / party)
    changes = [change(it, rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    before = fingerprint(case / "outside")
    places = {
        "it": it,
        "other": seeds / "other",
        "scratch": scratch,
        "image": seeds / "arrays/image.png",
        "images": seeds / "images",
        "ward": seeds / "consortium/client-0",
    }
    command = [part.format(**places) for part in template]
    found = run_case(command, scratch, base_bytes)
    if not found.wrong and fingerprint(case / "outside") != before:
        found = found._replace(wrong="changed files outside")
    return f"{' '.join(template)}: {', '.join(changes)}", found


def _preload() -> None:
    """Import what commands import when they run, so that a forked case starts at once."""
    for name in (
        "matplotlib.figure",
        "sklearn.metrics",
        "fedrfq.cli.main",
        "fedrfq.report.comparison_page",
        "fedrfq.report.run_page",
        "fedrfq.runs.inference",
        "fedrfq.runs.session",
    ):
        importlib.import_module(name)


def main() -> None:
    """Fuzz for some minutes, print what was found and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this case alone, and print its output")
    parser.add_argument("--out", type=Path, help="write a record of what was done and found")
    options = parser.parse_args()
    _preload()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ["FEDRFQ_DATA"] = str(home / "cache")
        seeds = made(home)
        base_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if options.only is not None:
            rng = random.Random(f"{options.seed} {options.only}")
            about, found = fuzz(seeds, home, rng, base_bytes)
            print(about, found.wrong, found.output, sep="\n")
            sys.exit(bool(found.wrong))
        record: dict[str, Any] = {}
        # Written again and again, so that a run which is cut off has a record, too.
        for record in _campaign(seeds, home, options, base_bytes):
            _write(record, options.out)
    print(f"{record['cases']} cases, {len(record['found'])} found")
    sys.exit(bool(record["found"]))


def _write(record: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _campaign(
    seeds: Path, home: Path, options: argparse.Namespace, base_bytes: int
) -> Iterator[dict[str, Any]]:
    """Run cases; yield the record after each of them."""
    revision = _revision()
    codes: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    number = 0
    begin = time.monotonic()
    while time.monotonic() - begin < 60 * options.minutes:
        # Each case has a seed of its own, so that it can be run alone.
        about, ended = fuzz(seeds, home, random.Random(f"{options.seed} {number}"), base_bytes)
        codes[f"{about.partition(':')[0]} -> {ended.code}"] += 1
        if ended.wrong:
            print(f"case {number}: {ended.wrong}: {about}", flush=True)
            last = [line[:200] for line in ended.output.strip().splitlines()[-1:]]
            found.append({"case": number, "wrong": ended.wrong, "what": about, "last": last})
        number += 1
        yield {
            "command": f"python bench/fuzz_folders.py --minutes {options.minutes:g} --seed "
            f"{options.seed}",
            "seed": options.seed,
            "revision": revision,
            "minutes": round((time.monotonic() - begin) / 60, 1),
            "cases": number,
            "found": found,
            "ended": dict(sorted(codes.items())),
        }


def _revision() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
