"""Flower's deployment engine on this machine: SuperLink and SuperNodes as processes, with TLS."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedrfq.node.ops.local_cluster import free_ports

# The name of the connection in Flower's configuration.
NAME = "loopback"
# In the environment of every process, and so also of those that have left our session.
_MARK = "FEDRFQ_DEPLOYMENT"
_PEM = serialization.Encoding.PEM
_OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    # Seconds between two looks for work, at every node and at the SuperLink; 1 by default.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    # Many processes, few cores.
    "OMP_NUM_THREADS": "1",
}


class Deployment:
    """Named processes, each with its output in a file; all that they start carries that name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.port = free_ports(1)[0]
        folder.mkdir(parents=True)
        certify(folder)
        (folder / "home").mkdir()
        connection = f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{folder}/ca.crt"\n'
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n{connection}'
        )

    def superlink(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        options = {
            "--port": str(self.port),
            "--ssl-ca-certfile": str(self.folder / "ca.crt"),
            "--ssl-certfile": str(self.folder / "server.crt"),
            "--ssl-keyfile": str(self.folder / "server.key"),
            "--database": str(self.folder / "superlink.db"),
        }
        self._start("superlink", "flower-superlink", options, "--enable-supernode-auth")
        self.until(self._healthy, "the SuperLink does not answer")

    def register(self, node: str) -> int:
        """Register a new key of this node with the SuperLink, and return the node's id."""
        key = ec.generate_private_key(ec.SECP384R1())
        openssh = serialization.PrivateFormat.OpenSSH
        no_password = serialization.NoEncryption()
        (self.folder / node).write_bytes(key.private_bytes(_PEM, openssh, no_password))
        path = self.folder / f"{node}.pub"
        formats = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        path.write_bytes(key.public_key().public_bytes(*formats))
        return int(self.flwr("supernode", "register", str(path), NAME)["node-id"])

    def supernode(self, node: str, config: str) -> None:
        """Start a node with the key of `register`."""
        options = {
            "--superlink": f"127.0.0.1:{self.port}",
            "--root-certificates": str(self.folder / "ca.crt"),
            "--auth-supernode-private-key": str(self.folder / node),
            "--port": str(free_ports(1)[0]),
            "--node-config": config,
        }
        self._start(node, "flower-supernode", options)

    def run(self, app: Path, config: str) -> int:
        """Start a run of this app, and return its id."""
        return int(self.flwr("run", str(app), NAME, "--run-config", config)["run-id"])

    def status(self, run: int) -> str:
        """Return the SuperLink's status of a run, such as running or finished:completed."""
        return str(self.flwr("list", NAME, "--run-id", str(run))["runs"][0]["status"])

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Return the answer of one of Flower's commands; if it fails, raise with its output."""
        command = [str(Path(sys.executable).with_name("flwr")), *arguments, "--format", "json"]
        done = subprocess.run(
            command,
            env=self._environment("cli"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["success"], answer
        return answer

    def output(self, name: str) -> str:
        """Return the output of a process."""
        path = self.folder / f"{name}.log"
        if path.exists():
            return path.read_text(encoding="utf-8", errors="replace")
        return ""

    def until(self, done: Callable[[], bool], problem: str, limit_s: float = 60.0) -> None:
        """Wait until this is done; after the limit, fail with the problem and all outputs."""
        end = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > end:
                outputs = [f"{name}: {self.output(name)[-2000:]}" for name in self._names()]
                raise AssertionError("\n".join([problem, *outputs]))
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Kill this process, and all that it has started."""
        kill(f"{self.mark}:{name}", exact=True)

    def processes(self) -> list[int]:
        """Return the processes of this deployment that are alive."""
        return _marked(self.mark, exact=False)

    def _start(self, name: str, program: str, options: Mapping[str, str], *flags: str) -> None:
        command = [str(Path(sys.executable).with_name(program)), *flags]
        for option, value in options.items():
            command += [option, value]
        with (self.folder / f"{name}.log").open("ab") as log:
            subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self, name: str) -> Mapping[str, str]:
        # SuperNodes start programs by their names.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "FLWR_HOME": str(self.folder / "home"), _MARK: f"{self.mark}:{name}"}
        return {**os.environ, **_OFFLINE, **own}

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        url = f"https://127.0.0.1:{self.port}/health"
        try:
            with urllib.request.urlopen(url, timeout=1, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.log"))


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Yield a deployment of which nothing runs once the block is left."""
    deployment = Deployment(folder)
    with _killing(deployment.mark):
        yield deployment


@contextmanager
def guarded() -> Iterator[dict[str, str]]:
    """Yield an environment; processes started with it do not outlive the block."""
    mark = uuid.uuid4().hex
    with _killing(mark):
        yield {_MARK: mark}


@contextmanager
def _killing(mark: str) -> Iterator[None]:
    """Kill all processes of this mark when the block is left, or when this process is killed."""
    with subprocess.Popen(
        [sys.executable, __file__, mark], stdin=subprocess.PIPE, start_new_session=True
    ):
        try:
            yield
        finally:
            kill(mark, exact=False)


def kill(mark: str, exact: bool) -> None:
    """Kill processes until none is left whose mark is this, or, unless `exact`, begins with it."""
    while pids := _marked(mark, exact):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _marked(mark: str, exact: bool) -> list[int]:
    wanted = f"{_MARK}={mark}".encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # A process may end while we look at it.
        with suppress(OSError):
            for variable in path.read_bytes().split(b"\0"):
                if variable == wanted or (not exact and variable.startswith(wanted)):
                    pids.append(int(path.parent.name))
                    break
    return pids


def certify(folder: Path) -> None:
    """Write ca.crt of a new authority, and server.crt and server.key for 127.0.0.1."""
    authority = ec.generate_private_key(ec.SECP256R1())
    own = ec.generate_private_key(ec.SECP256R1())
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    ca = _certificate(root, root, authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    server = (
        _certificate(name, root, own)
        .add_extension(address, critical=False)
        .add_extension(authority_id, critical=False)
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "ca.crt").write_bytes(ca.sign(authority, hashes.SHA256()).public_bytes(_PEM))
    (folder / "server.crt").write_bytes(server.sign(authority, hashes.SHA256()).public_bytes(_PEM))
    (folder / "server.key").write_bytes(own.private_bytes(_PEM, *plain))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    public = key.public_key()
    named = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    valid = named.not_valid_before(now - timedelta(hours=1)).not_valid_after(
        now + timedelta(days=1)
    )
    return valid.serial_number(x509.random_serial_number()).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(public), critical=False
    )


if __name__ == "__main__":
    # Standard input ends with whoever started this process, be it that it was killed.
    sys.stdin.read()
    kill(sys.argv[1], exact=False)
