"""Build the images and run the trial consortium of deploy/compose.yaml in them: `make test-images`.

This needs buildah and mmdebstrap, and root. Where they are missing, it says so and ends. It starts
parties with buildah alone, which works nearly everywhere: as the image's user and in the image's
files, but without namespaces. So the parties get addresses of their own on the loopback interface
instead of a network, and the limits in compose.yaml are not tried.

    python tests/project/images.py --work /var/tmp/images --out results/images.json
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose.yaml"
TOOLS = ("buildah", "mmdebstrap")
HOME = "/var/lib/fedrfq"
# The user of the images.
USER_ID = 10001
PATIENCE_S = 900


def missing() -> list[str]:
    """Return the tools that are not installed."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def run(*command: object, quiet: bool = True) -> str:
    """Run a command; where it fails, show what it printed and stop."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=quiet, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(words)}\n{done.stdout or ''}{done.stderr or ''}")
    return done.stdout or ""


class Image:
    """A container of an image, in which several parties may run at once."""

    def __init__(self, name: str, work: Path) -> None:
        self.name = name
        self.work = work
        self.container = run("buildah", "from", "--pull-never", name).strip()
        # Instead of a network's names.
        run("buildah", "copy", self.container, work / "hosts", "/etc/hosts")
        self.config = json.loads(run("buildah", "inspect", "--type", "image", name))["Docker"]

    def command(self, words: list[str], folder: str = HOME) -> list[str]:
        """Return the command line that runs some words in the image, on the shared volume."""
        options = ["--isolation", "chroot", "--no-hosts", "--workingdir", folder]
        volume = ["-v", f"{self.work}/volume:{HOME}"]
        return ["buildah", "run", *options, *volume, self.container, "--", *words]

    def remove(self) -> None:
        """Remove the container."""
        run("buildah", "rm", self.container)


@contextmanager
def opened(name: str, work: Path) -> Iterator[Image]:
    """Make a container of an image, and remove it in the end."""
    image = Image(name, work)
    try:
        yield image
    finally:
        image.remove()


def consortium(work: Path) -> dict[str, Any]:
    """Run the services of the compose file; return how long it took, and the last of `verify`."""
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    (work / "volume").mkdir()
    os.chown(work / "volume", USER_ID, USER_ID)
    names = [name for name in services if name.startswith("server-")]
    hosts = [f"127.0.1.{number} {name}" for number, name in enumerate(names, start=1)]
    (work / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]), encoding="utf-8")
    with ExitStack() as stack:
        images = {
            name: stack.enter_context(opened(f"localhost/fedrfq-{name}", work))
            for name in ("server", "client")
        }
        _check_server_image(images["server"])

        def command(name: str) -> list[str]:
            service = services[name]
            image = images[service["image"].removeprefix("localhost/fedrfq-")]
            words = [*service["entrypoint"], *service.get("command", [])]
            return image.command(words, service.get("working_dir", HOME))

        run(*command("found"))
        begin = time.monotonic()
        _run_together(work, {n: command(n) for n in services if n not in ("found", "verify")})
        seconds = time.monotonic() - begin
        verified = run(*command("verify"))
        _check_health(work, images["server"])
    return {"seconds": round(seconds, 1), "verified": verified.strip().splitlines()[-1]}


def _check_server_image(image: Image) -> None:
    """Check that a server's image has no PyTorch, and runs as a user of its own."""
    probe = "import importlib.util as u, os; print(u.find_spec('torch'), os.getuid())"
    assert run(*image.command(["python", "-c", probe])).split() == ["None", str(USER_ID)]


def _run_together(work: Path, commands: dict[str, list[str]]) -> None:
    """Run all parties until the last has ended, and stop where one has failed."""
    parties = {}
    for name, words in commands.items():
        with (work / f"{name}.log").open("wb") as log:
            parties[name] = subprocess.Popen(words, stdout=log, stderr=log)
    deadline = time.monotonic() + PATIENCE_S
    try:
        for name, party in parties.items():
            if party.wait(max(1, deadline - time.monotonic())):
                log = (work / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                sys.exit(f"{name} ended with {party.returncode}:\n{log[-3000:]}")
    finally:
        for party in parties.values():
            party.terminate()
        for party in parties.values():
            party.wait()


def _check_health(work: Path, image: Image) -> None:
    """Start a server as its image says by itself, and ask for its health as the image does."""
    volume = work / "volume"
    shutil.move(volume, work / "all")
    shutil.copytree(work / "all" / "trial" / "server-0", volume)
    run("chown", "-R", f"{USER_ID}:{USER_ID}", volume)
    (volume / "status.json").unlink(missing_ok=True)
    config = image.config["config"]
    words = [*config["Entrypoint"], *config["Cmd"]]
    check = image.command(config["Healthcheck"]["Test"][1:])
    with (work / "alone.log").open("wb") as log:
        server = subprocess.Popen(image.command(words), stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run(check, capture_output=True, check=False).returncode:
            assert server.poll() is None, (work / "alone.log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(1)
    finally:
        server.terminate()
        server.wait()


def sizes() -> dict[str, str]:
    """Return the sizes of the images."""
    listed = json.loads(run("buildah", "images", "--json"))
    return {
        image["names"][0]: image["size"]
        for image in listed
        if any("fedrfq-" in name for name in image.get("names") or [])
    }


def main() -> None:
    """Build the images, run the consortium in them, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="keep the base and the wheels in this folder")
    parser.add_argument("--built", action="store_true", help="take the images that are there")
    parser.add_argument("--out", type=Path, help="write a record of what was done")
    options = parser.parse_args()
    if lacking := missing():
        print(f"skipped: {' and '.join(lacking)} not installed (apt-get install {lacking[0]})")
        return
    # No kernel module, no user namespace: the driver that works everywhere, and the slowest.
    os.environ.setdefault("STORAGE_DRIVER", "vfs")
    os.environ.setdefault("PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        # The images' user must be able to enter it.
        work.chmod(0o755)
        if not options.built:
            run("sh", ROOT / "deploy/images.sh", options.work or work / "build", quiet=False)
        result = consortium(work)
    revision = run("git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12").strip()
    record = {"command": "make test-images", "revision": revision, "sizes": sizes(), **result}
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
