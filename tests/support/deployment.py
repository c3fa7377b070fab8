"""Flower's deployment engine on this machine: a SuperLink and SuperNodes as processes, with TLS and node authentication."""

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
from collections.abc import Iterator, Mapping
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

NAME = "loopback"  # of the connection
_MARK = "FEDRFQ_DEPLOYMENT"  # in the environment of every process, also of those that have left our session
_PEM = serialization.Encoding.PEM
_OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "OMP_NUM_THREADS": "1",  # many processes, few cores
}


class Deployment:
    """The processes, by name, each with its output in a file; all that they start is marked with that name."""

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
        """Started, and answering."""
        files = {
            "--ssl-ca-certfile": "ca.crt",
            "--ssl-certfile": "server.crt",
            "--ssl-keyfile": "server.key",
        }
        own = [part for option, name in files.items() for part in (option, str(self.folder / name))]
        database = ["--database", str(self.folder / "superlink.db")]
        self._start(
            "superlink",
            "flower-superlink",
            "--enable-supernode-auth",
            "--port",
            str(self.port),
            *own,
            *database,
        )
        self.until(self._healthy, "the SuperLink does not answer")

    def register(self, node: str) -> int:
        """A new key pair of this node made known to the SuperLink; its id there."""
        key = ec.generate_private_key(ec.SECP384R1())
        openssh = serialization.PrivateFormat.OpenSSH
        no_password = serialization.NoEncryption()
        (self.folder / node).write_bytes(key.private_bytes(_PEM, openssh, no_password))
        public = self.folder / f"{node}.pub"
        public.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
        )
        return int(self.flwr("supernode", "register", str(public), NAME)["node-id"])

    def supernode(self, node: str, config: str) -> None:
        """Started, with the key of `register`."""
        link = [
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--root-certificates",
            str(self.folder / "ca.crt"),
        ]
        own = [
            "--auth-supernode-private-key",
            str(self.folder / node),
            "--port",
            str(free_ports(1)[0]),
        ]
        self._start(node, "flower-supernode", *link, *own, "--node-config", config)

    def run(self, app: Path, config: str) -> int:
        """The id of a run of this app, which has begun."""
        return int(self.flwr("run", str(app), NAME, "--run-config", config)["run-id"])

    def status(self, run: int) -> str:
        """What the SuperLink says of a run: running, finished:completed …"""
        return str(self.flwr("list", NAME, "--run-id", str(run))["runs"][0]["status"])

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """What a command of Flower's answers; AssertionError with what it says if it fails."""
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
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["success"], found
        return found

    def said(self, name: str) -> str:
        """The output of a process."""
        path = self.folder / f"{name}.log"
        if path.exists():
            return path.read_text(encoding="utf-8", errors="replace")
        return ""

    def until(self, done: Any, otherwise: str, limit_s: float = 60.0) -> None:
        ends = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < ends, otherwise + "".join(
                f"\n{n}: {self.said(n)[-2000:]}" for n in self._names()
            )
            time.sleep(0.2)

    def kill(self, name: str = "") -> None:
        """Everything of this process's, or of all, at once."""
        kill(f"{self.mark}:{name}", whole=bool(name))

    def processes(self) -> list[int]:
        return _marked(self.mark, whole=False)

    def _start(self, name: str, program: str, *arguments: str) -> None:
        command = [str(Path(sys.executable).with_name(program)), *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            where = {
                "cwd": self.folder,
                "env": self._environment(name),
                "stdin": subprocess.DEVNULL,
            }
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **where)  # type: ignore[call-overload]

    def _environment(self, name: str) -> Mapping[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # SuperNodes start programs by their name
        own = {"PATH": path, "FLWR_HOME": str(self.folder / "home"), _MARK: f"{self.mark}:{name}"}
        return {**os.environ, **_OFFLINE, **own}

    def _healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        try:
            with urllib.request.urlopen(
                f"https://127.0.0.1:{self.port}/health", timeout=1, context=context
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.log"))


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """A deployment of which nothing runs once the block is left, however it is left: be it that this process is killed."""
    found = Deployment(folder)
    with subprocess.Popen(
        [sys.executable, __file__, found.mark], stdin=subprocess.PIPE, start_new_session=True
    ):
        try:
            yield found
        finally:
            found.kill()


def kill(mark: str, whole: bool) -> None:
    """kill -9 until nobody is left whose mark is this, or begins so."""
    while found := _marked(mark, whole):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _marked(mark: str, whole: bool) -> list[int]:
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # processes end while one looks at them
            if any(
                one == wanted or (not whole and one.startswith(wanted))
                for one in path.read_bytes().split(b"\0")
            ):
                found.append(int(path.parent.name))
    return found


def certify(folder: Path) -> None:
    """An authority of its own, and a certificate of it for 127.0.0.1: ca.crt, server.crt, server.key."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    its_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    ca = _certificate(root, root, authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    server = (
        _certificate(name, root, own)
        .add_extension(address, critical=False)
        .add_extension(its_key, critical=False)
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


if (
    __name__ == "__main__"
):  # waits until whoever started it is gone, and then sees to it that nothing else is left
    sys.stdin.read()
    kill(sys.argv[1], whole=False)
