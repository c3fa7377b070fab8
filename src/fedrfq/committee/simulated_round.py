"""One round of a simulated committee: a world of its own, from the last round's certificate to the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Decided, Effect, Event, Submit
from fedrfq.consensus.messages import Cert, Message, Upload
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import signatures
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import outcome, unpack
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.simulator.adversaries import BEHAVIOURS, Ring
from fedrfq.simulator.network import LinkFaults
from fedrfq.simulator.world import SimulatedMachine, SimulatedParty, World

# of a round; seconds, and some thousands, are usual
MOST_MS = 3_600_000
MOST_EVENTS = 10_000_000

Maker = Callable[[list[Message]], SimulatedMachine]


class AbsentClient:
    """A client that has nothing to send in this round."""

    def step(self, event: Event) -> list[Effect]:
        return []


@dataclass(frozen=True)
class SimulatedRound:
    """`last` is what stands for all rounds before; the faulty servers behave as the behaviour of that name."""

    federation: Federation
    seed: int
    round: int
    last: bytes
    faulty: frozenset[int]
    behaviour: str
    links: LinkFaults

    def held(self, sent: Uploads) -> World:
        """The world once every honest server has decided on these uploads, signed by the clients as they are simulated."""
        contents = dict(zip(sent.clients, sent.encoded(self.round), strict=True))
        return self._decided(
            contents, lambda client: signatures.simulated(self.seed, "client", client)
        )

    def carried(self, uploads: Mapping[int, Message]) -> World:
        """The same of uploads that come signed, by client: what is sent is what they say, and the signature that came with
        it. Whether it holds, the servers find out."""
        contents = {
            client: message.body.content
            for client, message in uploads.items()
            if isinstance(message.body, Upload)
        }
        return self._decided(contents, lambda client: lambda _: uploads[client].signature)

    def _decided(self, contents: Mapping[int, bytes], signer: Callable[[int], Signer]) -> World:
        if not contents:
            raise UserError(
                f"no upload of round {self.round} can be sent, and the committee waits for one at least"
            )
        world = self._world(contents, signer)
        if not world.run(MOST_MS, MOST_EVENTS):
            raise UserError(
                f"the simulated committee did not agree on round {self.round} in an hour of its own time"
            )
        return world

    @cached_property
    def rules(self) -> Rules:
        return Rules(self.federation.roster)

    @cached_property
    def before(self) -> list[Message]:
        """The last round's certificate and outcome; nothing before the first."""
        return [placed.message for placed in unpack(self.last)]

    def _world(self, contents: Mapping[int, bytes], signer: Callable[[int], Signer]) -> World:
        servers = range(len(self.federation.servers))
        clients = range(len(self.federation.clients))
        world = World(
            len(servers), len(clients), self.links, Random(f"{self.seed}, round {self.round}")
        )
        world.measured, world.on_decided = True, self._until_all_decided(world)
        ring = self._ring(world.rng)
        for server in servers:
            faulty = server in self.faulty
            world.add(
                server,
                self._adversary(ring, server) if faulty else self._server(server),
                self.before,
                not faulty,
            )
        for client in clients:
            here = client in contents
            world.add(
                ~client,
                self._client(client, signer(client)) if here else lambda log: AbsentClient(),
                self.before,
            )
        world.start()
        for client, content in contents.items():
            world.give(~client, Submit(self.round, content))
        return world

    def _until_all_decided(self, world: World) -> Callable[[SimulatedParty, Decided], None]:
        waiting = set(range(len(self.federation.servers))) - self.faulty

        def decided(node: SimulatedParty, effect: Decided) -> None:
            if effect.outcome is not None:
                waiting.discard(node.party)
            world.done = not waiting

        return decided

    def _server(self, server: int) -> Maker:
        application = PrototypeApplication(self.federation.task)
        signer = self._signer(server)
        return lambda log: Replica(self.rules, server, signer, application, log)

    def _client(self, client: int, signer: Signer) -> Maker:
        return lambda log: Client(self.rules, client, signer, log)

    def _adversary(self, ring: Ring, server: int) -> Maker:
        return lambda log: BEHAVIOURS[self.behaviour](ring, server, tuple(log))

    def _ring(self, rng: Random) -> Ring:
        """What the faulty servers know together: their keys, and how the last round ended."""
        signers: dict[int, Signer] = {
            server: self._signer(server) for server in sorted(self.faulty)
        }
        ring = Ring(self.rules, PrototypeApplication(self.federation.task), signers, rng)
        if self.before:
            cert = self.before[0].body
            assert isinstance(cert, Cert)
            ring.decided(Decided(cert.certificate, outcome(self.before[1:]), ()))
        return ring

    def _signer(self, server: int) -> Signer:
        return signatures.simulated(self.seed, "server", server)
