"""The client app: what a node of Flower runs. Which clients it hosts follows from its own configuration.

- In a simulation nodes are numbered (`partition-id` of `num-partitions`): node i of n hosts an n-th of the clients, whose
  keys are simulated as the committee's are.
- A node of a real federation has `folders`: the folder of a client, or one in which clients' folders lie.

What goes wrong is a line in the node's log, and in its answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedrfq import data
from fedrfq.data import DATASETS, Dataset
from fedrfq.errors import UserError
from fedrfq.flower import trust
from fedrfq.flower.memory import keep_freed
from fedrfq.flower.messages import NodeAnswer, RoundOrder
from fedrfq.flower.node import FlowerNode
from fedrfq.flower.node_state import NodeState
from fedrfq.flower.shard import Shard, ShardData
from fedrfq.node import hosting, local_dataset
from fedrfq.runs.session import pick_device

Config = Mapping[str, bool | float | int | str]
STATE = "flower"  # beside a client's keys
# kept in a process, so that a message does not make them anew
_NODES = 256
_DATASETS = 2
_RANGE = re.compile(r"clients-(\d+)-(\d+)")
_log = logging.getLogger("flwr")

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One order, one answer."""
    keep_freed()
    answer = answered(message.content, context.node_config, context.run_config)
    return Message(answer.record(), reply_to=message)


def answered(content: RecordDict, own: Config, run: Config) -> NodeAnswer:
    """`own` is the node's configuration, `run` that of the run."""
    try:
        order = RoundOrder.read(content)
        answer = node(order, own, run).answer(order)
    except UserError as error:
        _log.error("fedrfq: %s", error)
        return NodeAnswer(error=str(error))
    if answer.left_out:
        who = ", ".join(map(str, answer.left_out))
        _log.warning(
            "fedrfq: round %d was decided without the uploads that clients %s had sent",
            order.round,
            who,
        )
    return answer


def node(order: RoundOrder, own: Config, run: Config) -> FlowerNode:
    """Who answers."""
    device = str(own.get("device", "auto"))
    if "folders" in own:
        folders = Path(str(own["folders"])).expanduser()
        return _real(
            folders,
            str(own.get("data", "")),
            device,
            Path(str(own.get("state", folders / STATE))).expanduser(),
        )
    if "partition-id" not in own or "num-partitions" not in own:
        raise UserError(
            "this node has no clients: say `--node-config 'folders=\"…\"'`, the folder with a client's keys"
        )
    state = own.get("state") or run.get("state") or order.state
    if not state:
        raise UserError(
            "it is not said where this node keeps its models: set `state` in its configuration"
        )
    return _simulated(
        order.experiment,
        _int(own, "partition-id"),
        _int(own, "num-partitions"),
        device,
        Path(str(state)),
    )


@lru_cache(_NODES)
def _simulated(text: str, place: int, nodes: int, device: str, state: Path) -> FlowerNode:
    experiment = trust.experiment_of(text)
    if not 0 <= place < nodes:
        raise UserError(f"partition-id is 0 to {nodes - 1}, not {place}")
    clients = range(place * experiment.clients // nodes, (place + 1) * experiment.clients // nodes)
    if not clients:
        raise UserError(
            f"{nodes} nodes for {experiment.clients} clients: this one has none, start fewer"
        )
    dataset = _load(experiment.data.name)
    keys = trust.simulated(experiment, clients, len(dataset.classes))
    shard = Shard(
        experiment,
        clients,
        ShardData.dealt(experiment, clients, dataset, honest=False),
        pick_device(device),
    )
    return FlowerNode(
        keys,
        shard,
        NodeState(
            _folder(state.expanduser(), clients), keys.run or experiment.hash(), shard.programs
        ),
    )


def _folder(state: Path, clients: range) -> Path:
    """For these clients; if one of them was kept in other company, its model would be lost."""
    own = state / f"clients-{clients.start}-{clients.stop - 1}"
    for other in state.glob("clients-*"):
        numbers = _RANGE.fullmatch(other.name)
        if (
            other != own
            and numbers
            and int(numbers[1]) < clients.stop
            and int(numbers[2]) >= clients.start
        ):
            raise UserError(
                f"{other} has the models of some of this node's clients: start as many nodes as before"
            )
    return own


@lru_cache(_NODES)
def _real(folders: Path, name: str, device: str, state: Path) -> FlowerNode:
    keys = trust.of_folders(folders)
    assert keys.federation is not None
    experiment = keys.experiment
    clients = keys.clients
    classes = keys.federation.task.classes
    name = name or experiment.data.name
    if len(clients) == 1:
        stock = ShardData.own(local_dataset.find(experiment, clients[0], classes, name))
    elif name not in DATASETS or name != experiment.data.name:
        own = (
            f"clients with samples of their own have a node each, and this one hosts {len(clients)}"
        )
        raise UserError(f"data = {name} is not the federation's {experiment.data.name}: {own}")
    else:
        stock = ShardData.dealt(experiment, clients, _load(name), honest=True)
    shard = Shard(experiment, clients, stock, pick_device(device))
    keeping = NodeState(state, keys.run, shard.programs)
    keeping.begin(clients, any(hosting.hosted(folder, state) for folder in keys.folders))
    for folder in keys.folders:
        hosting.claim(folder, state)
    return FlowerNode(keys, shard, keeping)


@lru_cache(_DATASETS)
def _load(name: str) -> Dataset:
    return data.load(name)


def _int(config: Config, key: str) -> int:
    value = config[key]
    if type(value) is not int:
        raise UserError(f"{key} is a whole number, not {value!r}")
    return value
