"""One round of a simulated committee, from the last round's certificate to the next one.

Every round has a simulated world of its own.
"""

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

# Bounds of a round. Usually it takes seconds of virtual time and some thousands of events.
MAX_MS = 3_600_000
MAX_EVENTS = 10_000_000

MachineMaker = Callable[[list[Message]], SimulatedMachine]
SignerOfClient = Callable[[int], Signer]


class AbsentClient:
    """A client that has nothing to send in this round."""

    def step(self, event: Event) -> list[Effect]:
        """Do nothing."""
        return []


@dataclass(frozen=True)
class SimulatedRound:
    """One round.

    `last` holds the previous round's certificate and outcome, which stand for all rounds before.
    The faulty servers behave as the behaviour of that name.
    """

    federation: Federation
    seed: int
    round: int
    last: bytes
    faulty: frozenset[int]
    behaviour: str
    links: LinkFaults

    def run(self, sent: Uploads) -> World:
        """Return the world in which every honest server has decided on these uploads.

        The uploads are signed with the simulated clients' keys.
        """
        contents = dict(zip(sent.clients, sent.encoded(self.round), strict=True))
        return self._run(contents, lambda client: signatures.simulated(self.seed, "client", client))

    def run_signed(self, uploads: Mapping[int, Message]) -> World:
        """Return the world in which every honest server has decided on these signed uploads.

        Each client sends its upload's content with the signature that came with it. Whether the
        signature is valid is for the servers to find out.
        """
        contents = {
            client: message.body.content
            for client, message in uploads.items()
            if isinstance(message.body, Upload)
        }
        return self._run(contents, lambda client: lambda _: uploads[client].signature)

    def _run(self, contents: Mapping[int, bytes], signer_of: SignerOfClient) -> World:
        if not contents:
            raise UserError(
                f"no upload of round {self.round} can be sent, but the committee needs at least one"
            )
        world = self._world(contents, signer_of)
        if not world.run(MAX_MS, MAX_EVENTS):
            raise UserError(
                f"the simulated committee did not agree on round {self.round} within an hour of"
                " virtual time: try another committee.network, and please report it"
            )
        return world

    @cached_property
    def rules(self) -> Rules:
        """The rules of the run."""
        return Rules(self.federation.roster)

    @cached_property
    def before(self) -> list[Message]:
        """The previous round's certificate and outcome; empty before the first round."""
        return [placed.message for placed in unpack(self.last)]

    def _world(self, contents: Mapping[int, bytes], signer_of: SignerOfClient) -> World:
        """Return a world in which all parties have started and clients have their uploads."""
        servers = range(len(self.federation.servers))
        clients = range(len(self.federation.clients))
        # A round's randomness depends on nothing before it, so that a resumed run repeats itself.
        rng = Random(f"{self.seed}, round {self.round}")
        world = World(len(servers), len(clients), self.links, rng)
        world.measured = True
        world.on_decided = self._until_all_decided(world)
        ring = self._ring(world.rng)
        for server in servers:
            if server in self.faulty:
                world.add(server, self._adversary(ring, server), self.before, False)
            else:
                world.add(server, self._server(server), self.before, True)
        for client in clients:
            if client in contents:
                world.add(~client, self._client(client, signer_of(client)), self.before)
            else:
                world.add(~client, lambda log: AbsentClient(), self.before)
        world.start()
        for client, content in contents.items():
            world.give(~client, Submit(self.round, content))
        return world

    def _until_all_decided(self, world: World) -> Callable[[SimulatedParty, Decided], None]:
        """Return a callback that ends the world once all honest servers have the outcome."""
        waiting = set(range(len(self.federation.servers))) - self.faulty

        def on_decided(node: SimulatedParty, effect: Decided) -> None:
            if effect.outcome is not None:
                waiting.discard(node.party)
            world.done = not waiting

        return on_decided

    def _server(self, server: int) -> MachineMaker:
        application = PrototypeApplication(self.federation.task)
        signer = self._signer(server)
        return lambda log: Replica(self.rules, server, signer, application, log)

    def _client(self, client: int, signer: Signer) -> MachineMaker:
        return lambda log: Client(self.rules, client, signer, log)

    def _adversary(self, ring: Ring, server: int) -> MachineMaker:
        return lambda log: BEHAVIOURS[self.behaviour](ring, server, tuple(log))

    def _ring(self, rng: Random) -> Ring:
        """Return what the faulty servers share: their keys, and how the last round ended."""
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
