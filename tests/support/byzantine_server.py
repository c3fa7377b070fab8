"""A faulty server as a real process, for tests only.

It has one of the simulator's behaviours, a real key and real connections.

python tests/support/byzantine_server.py DIR --behaviour equivocate
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from fedrfq.consensus.events import Broadcast, Effect, Event, Persist, Send
from fedrfq.consensus.messages import (
    DIGEST,
    Evidence,
    Message,
    PrePrepare,
    Record,
    UploadList,
)
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation.reconfiguration import reconfigurable
from fedrfq.node.driver.driver import Driver
from fedrfq.node.membership.identity import Identity, load
from fedrfq.node.transport.links import Links
from fedrfq.simulator.adversaries import BEHAVIOURS, Behaviour, Ring
from fedrfq.simulator.adversaries.incriminating import Incriminate
from fedrfq.simulator.party import Action, RawBytes, Relay, SimulatedMachine

# So many items make messages of half a megabyte; with more, the queue for a peer would overflow.
Incriminate.items = 4_000


class Nest(Behaviour):
    """Sends two megabytes of messages inside messages ten times a second, which take long to read.

    Only bytes have to be decoded, so this is of no use in the simulator.
    """

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.due_s = 0.0
        record = Record(1, *[bytes(DIGEST)] * 7)
        lists = (ring.sign(me, UploadList(1, me, ())),) * 8_000
        proposal = ring.sign(me, PrePrepare(1, 0, me, record, lists, ()))
        self.message = ring.rules.unsigned(Evidence(1, proposal, proposal))

    def extra(self, event: Event) -> list[Action]:
        if time.monotonic() < self.due_s:
            return []
        self.due_s = time.monotonic() + 0.1
        return [Broadcast(self.message)]


LIES = {**BEHAVIOURS, "nest": Nest}


class Faulty:
    """A faulty party as the state machine that a driver runs.

    It has no accomplices: what it would send over their channels goes over its own.
    """

    def __init__(self, behaviour: SimulatedMachine, noise: Callable[[int, bytes], None]) -> None:
        self.behaviour = behaviour
        self.noise = noise

    def step(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        for action in self.behaviour.step(event):
            if isinstance(action, RawBytes):
                self.noise(action.to, action.data)
            elif isinstance(action, Relay):
                effects.append(Send(action.to, action.message))
            elif not isinstance(action, Persist):
                effects.append(action)
        return effects


class Nowhere:
    """A write-ahead log that keeps nothing: liars need none."""

    def append(self, message: Message) -> None: ...

    def flush(self) -> None: ...


async def run(identity: Identity, behaviour: str, seed: int) -> None:
    """Run until SIGTERM."""
    federation = identity.federation
    stopped = asyncio.Event()
    ring = Ring(
        Rules(federation.roster),
        reconfigurable(federation),
        {identity.party: identity.signer},
        Random(seed),
    )
    links = Links(identity, lambda peer, data: driver.hear(peer, data))
    machine = Faulty(LIES[behaviour](ring, identity.party), links.send)
    driver = Driver(machine, identity.party, federation.roster, Nowhere(), links)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await links.start()
    driver.start()
    await stopped.wait()
    driver.stop()
    await links.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a server's")
    parser.add_argument("--behaviour", choices=LIES, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        identity = load(args.folder)
        if not identity.is_server:
            raise UserError(f"{args.folder} is a client's: only servers misbehave here")
    except UserError as error:
        sys.exit(f"error: {error}")
    asyncio.run(run(identity, args.behaviour, args.seed))


if __name__ == "__main__":
    main()
