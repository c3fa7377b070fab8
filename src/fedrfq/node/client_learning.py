"""What a client learns with: the experiment, its number in it, its samples, and its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import torch

from fedrfq.data import DATASETS, Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.public_task import PublicTask
from fedrfq.files import toml
from fedrfq.learning.public.exchange import public_task
from fedrfq.node import local_dataset
from fedrfq.node.client_privacy import ClientPrivacy
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.node.logs import log_event
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import Identity
from fedrfq.node.participant import Participant
from fedrfq.privacy.drawn_uploads import FOLDER

# What is done before a client's model is made, with the experiment and the client's data.
Prepare = Callable[[Experiment, Dataset], None]
# The folder in which a client keeps its model.
MODEL = "model"
# A file that says of a client's noisy uploads that they were lost.
LOST = "lost"


def nothing_to_prepare(_: Experiment, __: Dataset) -> None:
    """Do nothing: the experiment's model is known by its name."""


def place(identity: Identity) -> tuple[Experiment, int]:
    """Return the experiment of a client's federation, and the client's number in it."""
    experiment = _experiment(identity.federation)
    return experiment, _place(identity, experiment, "")


def local_data(identity: Identity, data: str) -> tuple[Experiment, int, LocalDataset]:
    """Return the experiment, the client's number in it, and its samples.

    `data` is the name of a dataset, or a path.
    """
    folder = identity.folder
    if identity.is_server:
        raise UserError(f"{folder} is a server's folder: run `fedrfq server {folder}`")
    if identity.role == "courier":
        raise UserError(
            f"{folder} is a courier's folder: it carries clients' uploads and has no data;"
            " name a client's folder"
        )
    experiment = _experiment(identity.federation)
    _check_public(identity, experiment)
    client = _place(identity, experiment, data)
    classes = identity.federation.task.classes
    contract = identity.federation.contract
    local = local_dataset.find(experiment, client, classes, data, contract)
    return experiment, client, local


def participant(
    identity: Identity,
    data: str,
    device: torch.device,
    prepare: Prepare = nothing_to_prepare,
    classes: Sequence[str] = (),
    renew: bool = False,
) -> Participant:
    """Return the learning of a client, on `data`: the name of a dataset, or a path.

    `classes` are those that it declares, where noise hides which of them it has samples of. With
    `renew` it sends statistics of these samples once more, in place of its last ones.
    """
    folder = identity.folder
    if renew:
        _check_renewable(identity)
    experiment, client, local = local_data(identity, data)
    prepare(experiment, local.dataset)
    contract = identity.federation.contract
    if contract is not None and (missing := contract.missing(local.dataset.train_y.tolist())):
        log_event("this client has no samples of some classes", classes=", ".join(missing))
    if local.common is None:
        log_event("no test on all classes: this client has test samples of its own classes only")
    return Participant(
        experiment,
        client,
        local,
        device,
        folder / MODEL,
        run=identity.federation.roster.run.hex(),
        member=~identity.party,
        before=epochs.rounds_before(folder),
        privacy=_privacy(identity, experiment, local, classes),
        renew=renew,
    )


def check_revocable(identity: Identity) -> None:
    """Raise UserError unless clients of this federation can take their statistics back."""
    if not identity.federation.task.is_revocable:
        raise UserError(
            "the members of this federation have not agreed that statistics can be taken back:"
            " its federation.toml has no public.revocable = true"
        )


def _check_renewable(identity: Identity) -> None:
    public = identity.federation.task.public
    if public is None:
        raise UserError("--renew: clients of this federation send no statistics; leave it out")
    if not public.revocable:
        raise UserError(
            "--renew: servers of this federation keep nobody's statistics, only what all add up to,"
            " so one client's cannot be replaced (public.revocable = false). Without --renew, a"
            f" client sends those of its present samples {_next_exchange(public)}"
        )
    if public.privacy is not None:
        raise UserError(
            "--renew: noise protects these samples, and to send them once more would cost privacy"
            " that nobody agreed to; `fedrfq forget` takes back everything"
        )


def _next_exchange(public: PublicTask) -> str:
    if public.every:
        return f"like all others every {public.every} rounds"
    return "in the first round after the next change of the federation"


def _privacy(
    identity: Identity, experiment: Experiment, local: LocalDataset, classes: Sequence[str]
) -> ClientPrivacy | None:
    """Return what the client promises its samples; None where no noise was agreed on."""
    task = identity.federation.task.public
    if task is None or task.privacy is None:
        if classes:
            raise UserError(
                "--classes: the federation adds no noise, so classes without samples are not"
                " uploaded; leave it out"
            )
        return None
    run = identity.federation.roster.run.hex()
    earlier = _sent_uncovered(identity, experiment)
    return ClientPrivacy.of(experiment, task, local, identity.folder, run, classes, earlier)


def _sent_uncovered(identity: Identity, experiment: Experiment) -> str:
    """Return why there is no ε for what the client sent in runs that have ended; "" if there is.

    The next run may have another experiment, which takes nothing back of what has left.
    """
    kept = identity.folder / FOLDER
    name = identity.member.name
    for number, run in enumerate(epochs.ended_epochs(identity.folder), 1):
        if name not in (member.name for member in run.federation.members.values()):
            continue
        if not kept.is_dir():
            raise UserError(
                f"{kept} is missing, though {name} was in earlier runs of the federation, and it"
                " alone knows what they cost: restore it. If it is lost, make the folder with an"
                f" empty file '{LOST}' in it, and there is no ε any more"
            )
        if why := _uncovered(run.federation, experiment):
            return f"in run {number} of the federation, {why}"
    if (kept / LOST).exists():
        return f"what was drawn in earlier runs is lost, as {kept / LOST} says"
    return ""


def _uncovered(federation: Federation, now: Experiment) -> str:
    try:
        before = _experiment(federation)
    except UserError as error:
        return f"whose experiment this program cannot read: {error}"
    if before.noisy_steps(1) != now.noisy_steps(1):
        # Rounds are counted, not what noise they had; and the model of then is trained further.
        return "clients trained with other noise (train.dp_noise), or without any"
    return before.uncovered()


def _place(identity: Identity, experiment: Experiment, data: str) -> int:
    """Return the client's number in the experiment: the one it has in the federation's first run.

    A client that joined later has no share of the experiment's data. Otherwise it is treated like
    one of those that have.
    """
    name = identity.member.name
    ended = [run.federation for run in epochs.ended_epochs(identity.folder)]
    first = [*ended, identity.federation][0]
    for client in range(len(first.clients)):
        if first.members[~client].name == name:
            return client
    if data in DATASETS:
        raise UserError(
            f"{name} joined later and has no share of {data}: give its own samples with --data PATH"
        )
    return ~identity.party % experiment.clients


def _experiment(federation: Federation) -> Experiment:
    assert federation.network is not None
    return from_table(toml.strict(federation.network.experiment))


def _check_public(identity: Identity, experiment: Experiment) -> None:
    """Check that this program makes of the experiment the public map that the members agreed on."""
    agreed = identity.federation.task.public
    classes = identity.federation.task.classes
    found = public_task(experiment.public, classes, experiment.privacy)
    for field in fields(PublicTask):
        expected = getattr(agreed, field.name, None)
        here = getattr(found, field.name, None)
        if here != expected:
            raise UserError(
                f"the federation agreed on public.{field.name} = {expected}, and this program makes"
                f" {here} of its experiment: install the release that founded the federation,"
                " or get federation.toml from another member again"
            )
