"""The behaviours of faulty servers and clients, by name; a new one is a class and a line here."""

from __future__ import annotations

from fedrfq.simulator.adversaries.behaviour import Behaviour
from fedrfq.simulator.adversaries.changing import Mutate
from fedrfq.simulator.adversaries.clients import CLIENTS, FaultyClient
from fedrfq.simulator.adversaries.forging import Forge
from fedrfq.simulator.adversaries.hoarding import Hoard
from fedrfq.simulator.adversaries.incriminating import Incriminate
from fedrfq.simulator.adversaries.leaders import Censor, Equivocate, Wrong
from fedrfq.simulator.adversaries.lying import Lie
from fedrfq.simulator.adversaries.missigning import Missign
from fedrfq.simulator.adversaries.quiet import Amnesiac, Silent, Twins
from fedrfq.simulator.adversaries.repeating import Flood, Replay
from fedrfq.simulator.adversaries.ring import Ring

BEHAVIOURS: dict[str, type[Behaviour]] = {
    "silent": Silent,
    "crash": Amnesiac,
    "twins": Twins,
    "equivocate": Equivocate,
    "censor": Censor,
    "forge": Forge,
    "wrong": Wrong,
    "mutate": Mutate,
    "replay": Replay,
    "flood": Flood,
    "lie": Lie,
    "hoard": Hoard,
    "incriminate": Incriminate,
    "missign": Missign,
}

__all__ = ["BEHAVIOURS", "CLIENTS", "Behaviour", "FaultyClient", "Ring"]
