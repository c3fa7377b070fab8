"""A network of its own for each hospital, with proxies between them that delay, lose and cut."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

from support.proxy import Proxy, Weather

# Each way; a lost piece breaks the encrypted connection, which is then made anew.
WEATHER = Weather(delay_s=(0.01, 0.04), piece=4096, drop=0.0005, cut=0.0005)
PORT = 7400


class Networks:
    """A network namespace for each hospital, with a cable to this one.

    Others reach a hospital's server through a proxy at this end of its cable.
    """

    def __init__(self) -> None:
        # Other processes of this machine may have networks of their own.
        self.number = os.getpid()
        self.proxies: list[Proxy] = []

    def name(self, hospital: str) -> str:
        """Return the name of a hospital's network, and of this end of its cable."""
        return f"fq{self.number}{hospital}"

    def net(self, hospital: str) -> str:
        """Return the first three numbers of the addresses of a hospital's network."""
        return f"10.{64 + self.number % 128}.{ord(hospital)}"

    def inside(self, hospital: str) -> list[str]:
        """Return what stands before a command that is run in a hospital's network."""
        return ["ip", "netns", "exec", self.name(hospital)]

    def lay(self, hospital: str) -> None:
        """Lay the cable into a hospital's network."""
        name = self.name(hospital)
        net = self.net(hospital)
        inner = ["ip", "-n", name]
        for step in (
            ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name],
            ["ip", "addr", "add", f"{net}.1/24", "dev", name],
            ["ip", "link", "set", name, "up"],
            [*inner, "addr", "add", f"{net}.2/24", "dev", "eth0"],
            [*inner, "link", "set", "eth0", "up"],
            [*inner, "link", "set", "lo", "up"],
            [*inner, "route", "add", "default", "via", f"{net}.1"],
        ):
            subprocess.run(step, check=True)

    def replaced(self, servers: Sequence[str]) -> dict[str, str]:
        """Return what to replace on the page: addresses, and where each server listens."""
        found = {}
        for number, hospital in enumerate(servers):
            net = self.net(hospital)
            found[f"127.0.0.1:{PORT + number}"] = f"{net}.1:{PORT}"
            server = f"fedrfq server hospital-{hospital}"
            found[server] = f"{server} --listen {net}.2:{PORT}"
        return found


def permitted() -> bool:
    """Return whether this process may make networks."""
    if shutil.which("ip") is None:
        return False
    name = f"fq{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return False
    entered = ["ip", "netns", "exec", name, "true"]
    done = subprocess.run(entered, capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], check=False)
    return not done.returncode


@contextmanager
def networks(hospitals: Sequence[str], servers: Sequence[str], rng: Random) -> Iterator[Networks]:
    """Make the networks of hospitals, and proxies for those that have servers."""
    found = Networks()
    made = []
    try:
        for hospital in hospitals:
            subprocess.run(["ip", "netns", "add", found.name(hospital)], check=True)
            made.append(hospital)
            found.lay(hospital)
        with _proxies(found, servers, rng):
            yield found
    finally:
        for hospital in made:
            subprocess.run(["ip", "netns", "del", found.name(hospital)], check=False)


@contextmanager
def _proxies(networks: Networks, servers: Sequence[str], rng: Random) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        for hospital in servers:
            net = networks.net(hospital)
            proxy = Proxy(PORT, rng, WEATHER, host=f"{net}.1", target_host=f"{net}.2")
            asyncio.run_coroutine_threadsafe(proxy.start(PORT), loop).result()
            networks.proxies.append(proxy)
        yield
    finally:
        for proxy in networks.proxies:
            asyncio.run_coroutine_threadsafe(proxy.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
