"""The client app: what a node of Flower runs. Its own configuration says which clients it hosts.

- In a simulation nodes are numbered (`partition-id` of `num-partitions`): node i of n hosts an n-th
  of the clients, whose keys are simulated as the committee's are.
- A node of a real federation has `folders`: the folder of a client, or one that holds several.

An error is a line in the node's log, and in its answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedrfq.data import DATASETS, Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Data
from fedrfq.flower import trust
from fedrfq.flower.memory import keep_freed
from fedrfq.flower.messages import NodeAnswer, RoundOrder
from fedrfq.flower.node import FlowerNode
from fedrfq.flower.node_state import NodeState
from fedrfq.flower.shard import Shard, ShardData
from fedrfq.node import hosting, local_dataset
from fedrfq.privacy.drawn_uploads import FOLDER, DrawnUploads
from fedrfq.runs.session import pick_device

Config = Mapping[str, bool | float | int | str]
# The folder for a node's state, beside a client's keys.
STATE = "flower"
# Nodes and datasets that a process keeps, so that a message does not build them anew.
_MAX_NODES = 256
_MAX_DATASETS = 2
_RANGE = re.compile(r"clients-(\d+)-(\d+)")
_log = logging.getLogger("flwr")

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer one order."""
    keep_freed()
    answer = answered(message.content, context.node_config, context.run_config)
    return Message(answer.record(), reply_to=message)


def answered(content: RecordDict, node_config: Config, run_config: Config) -> NodeAnswer:
    """Return the node's answer to an order; an error becomes an answer too."""
    try:
        order = RoundOrder.read(content)
        answer = node(order, node_config, run_config).answer(order)
    except UserError as error:
        _log.error("fedrfq: %s", error)
        return NodeAnswer(error=str(error))
    if answer.left_out:
        clients = ", ".join(map(str, answer.left_out))
        _log.warning(
            "fedrfq: round %d was decided without the uploads that clients %s had sent",
            order.round,
            clients,
        )
    return answer


def node(order: RoundOrder, node_config: Config, run_config: Config) -> FlowerNode:
    """Return the node that this configuration describes."""
    device = str(node_config.get("device", "auto"))
    if "folders" in node_config:
        folders = Path(str(node_config["folders"])).expanduser()
        state = Path(str(node_config.get("state", folders / STATE))).expanduser()
        return _real(folders, str(node_config.get("data", "")), device, state)
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise UserError(
            "this node has no clients: give it the folder with a client's keys, "
            "with `--node-config 'folders=\"…\"'`"
        )
    folder = node_config.get("state") or run_config.get("state") or order.state
    if not folder:
        raise UserError("this node has no folder for its models: set `state` in its configuration")
    place = _int(node_config, "partition-id")
    nodes = _int(node_config, "num-partitions")
    return _simulated(order.experiment, place, nodes, device, Path(str(folder)))


@lru_cache(_MAX_NODES)
def _simulated(text: str, place: int, nodes: int, device: str, state: Path) -> FlowerNode:
    """Return node `place` of so many nodes; `text` is the experiment."""
    experiment = trust.experiment_of(text)
    if not 0 <= place < nodes:
        raise UserError(f"partition-id must be from 0 to {nodes - 1}, not {place}")
    clients = range(place * experiment.clients // nodes, (place + 1) * experiment.clients // nodes)
    if not clients:
        raise UserError(
            f"there are {nodes} nodes for {experiment.clients} clients, so this node has none: "
            "start fewer nodes"
        )
    dataset = _load(experiment.data)
    keys = trust.simulated(experiment, clients, len(dataset.classes))
    shard_data = ShardData.dealt(experiment, clients, dataset, honest=False)
    folder = _folder(state.expanduser(), clients)
    drawn = DrawnUploads(folder / FOLDER)
    shard = Shard(experiment, clients, shard_data, pick_device(device), drawn)
    # Where nothing is exchanged there is no run id, and the experiment stands for it.
    return FlowerNode(keys, shard, NodeState(folder, keys.run or experiment.hash(), shard.programs))


def _folder(state: Path, clients: range) -> Path:
    """Return the folder for these clients.

    Raise a UserError if another folder has the model of one of them: it would be lost.
    """
    own = state / f"clients-{clients.start}-{clients.stop - 1}"
    for other in state.glob("clients-*"):
        numbers = _RANGE.fullmatch(other.name)
        if numbers is None or other == own:
            continue
        first = int(numbers[1])
        last = int(numbers[2])
        if first < clients.stop and last >= clients.start:
            raise UserError(
                f"{other} has the models of some of this node's clients: "
                "start as many nodes as before"
            )
    return own


@lru_cache(_MAX_NODES)
def _real(folders: Path, data_name: str, device: str, state: Path) -> FlowerNode:
    """Return the node of the clients whose keys lie in these folders."""
    keys = trust.of_folders(folders)
    shard_data = _real_data(keys, data_name or keys.experiment.data.name)
    drawn = DrawnUploads(state / FOLDER)
    shard = Shard(keys.experiment, keys.clients, shard_data, pick_device(device), drawn)
    node_state = NodeState(state, keys.run, shard.programs)
    hosted_before = any(hosting.hosted(folder, state) for folder in keys.folders)
    # The state is there before a client is claimed: a claimed client without one has lost it.
    node_state.begin(keys.clients, hosted_before)
    for folder in keys.folders:
        hosting.claim(folder, state)
    return FlowerNode(keys, shard, node_state)


def _real_data(keys: trust.Trust, name: str) -> ShardData:
    """Return the samples of a real federation's clients: one client's own, or dealt ones."""
    assert keys.federation is not None
    experiment = keys.experiment
    clients = keys.clients
    if len(clients) == 1:
        classes = keys.federation.task.classes
        contract = keys.federation.contract
        return ShardData.own(local_dataset.find(experiment, clients[0], classes, name, contract))
    if name not in DATASETS or name != experiment.data.name:
        raise UserError(
            f"data = {name} is not the federation's {experiment.data.name}: clients with samples "
            f"of their own need a node each, and this node hosts {len(clients)}"
        )
    return ShardData.dealt(experiment, clients, _load(experiment.data), honest=True)


@lru_cache(_MAX_DATASETS)
def _load(wanted: Data) -> Dataset:
    return wanted.load()


def _int(config: Config, key: str) -> int:
    value = config[key]
    # Not isinstance: True is an int.
    if type(value) is not int:
        raise UserError(f"{key} must be a whole number, not {value!r}")
    return value
