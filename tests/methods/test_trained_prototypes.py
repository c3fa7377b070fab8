"""FedTGP and FedORGP: the server's training by hand, and where it is refused."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.flower.committee_gateway import check_experiment
from fedrfq.methods import METHODS
from fedrfq.methods.fedorgp import FedORGP
from fedrfq.methods.fedtgp import FedTGP
from fedrfq.methods.trained_prototypes import generated
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals, Uploads
from support.small import run, tiny

ONE = 2**FRACTION_BITS
TRAINED = [name for name, kind in METHODS.items() if kind.trains_server]


def points(*rows: tuple[float, float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def classes(*labels: int) -> torch.Tensor:
    return torch.tensor(labels)


def server() -> Params:
    """Embeddings (1, 0) and (0, 1), which pass the hidden layer; the last layer gives 0."""
    return {
        "embedding": torch.eye(2, dtype=torch.float64),
        "hidden.weight": torch.eye(2, dtype=torch.float64),
        "hidden.bias": torch.zeros(2, dtype=torch.float64),
        "out.weight": torch.zeros(2, 2, dtype=torch.float64),
        "out.bias": torch.zeros(2, dtype=torch.float64),
    }


# One client sends (3, 4) of class 0.
UPLOADS = Uploads((0,), np.array([[1, 0]]), np.array([[[3, 4], [0, 0]]]) * ONE)
SENT = Globals(np.array([True, False]), UPLOADS.values_KJV[0])


def test_fedtgps_loss_by_hand() -> None:
    """At 5 from its own P̂, which the margin makes 7, and at 1 from the other."""
    loss = FedTGP().server_loss(points((0, 0)), classes(0), points((3, 4), (0, 1)), 2.0)
    assert float(loss) == pytest.approx(log(1 + exp(7 - 1)))


def test_fedtgps_margin_by_hand() -> None:
    """The means are (1, 0), (1, 3) and (1, 4); their nearest others lie at 3, 1 and 1."""
    sent = points((0, 0), (2, 0), (1, 3), (1, 4))
    assert FedTGP().margin(sent, classes(0, 0, 1, 5)) == pytest.approx(3)
    assert FedTGP(tau=2.0).margin(sent, classes(0, 0, 1, 5)) == 2
    assert FedTGP().margin(sent[:2], classes(0, 0)) == 0


def test_a_step_of_fedtgps_server_by_hand() -> None:
    """Both P̂ are 0, at distance 5 and equally likely: half of the unit vector (0.6, 0.8) each.

    A tenth of that moves the last layer's columns, one toward the upload and one away from it.
    """
    method = FedTGP(server_epochs=1, server_lr=0.1)
    before = server()
    trained, found = method.server_step(before, UPLOADS, SENT, np.random.default_rng(0))
    assert trained["out.weight"].tolist() == [
        pytest.approx([0.03, -0.03]),
        pytest.approx([0.04, -0.04]),
    ]
    assert trained["out.bias"].tolist() == pytest.approx([0, 0])
    assert torch.equal(before["out.weight"], server()["out.weight"])
    assert found.floats()[0] == pytest.approx(np.array([0.03, 0.04]), abs=1e-4)
    assert found.present_J.tolist() == [True, False]
    assert found.values_JV[1].tolist() == [0, 0]


def test_passes_and_batches_are_steps() -> None:
    """Two passes over two uploads, one at a time, go farther than one pass over both at once."""
    uploads = Uploads((0, 1), np.ones((2, 2), np.int64), np.array([[[3, 4], [4, 3]]] * 2) * ONE)
    known = Globals(np.ones(2, np.bool_), uploads.values_KJV[0])
    ways = []
    for epochs, batch in ((1, 4), (1, 1), (2, 1)):
        method = FedTGP(server_epochs=epochs, server_batch=batch)
        trained, _ = method.server_step(server(), uploads, known, np.random.default_rng(0))
        ways.append(float(trained["out.weight"].abs().sum()))
    assert ways[0] < ways[1] < ways[2]


def test_uploads_are_shuffled_by_the_rounds_randomness() -> None:
    uploads = Uploads((0, 1), np.ones((2, 2), np.int64), np.array([[[3, 4], [4, 3]]] * 2) * ONE)
    known = Globals(np.ones(2, np.bool_), uploads.values_KJV[0])
    method = FedTGP(server_batch=1, server_epochs=3)
    one, same, other = (
        method.server_step(server(), uploads, known, np.random.default_rng(seed))[0]["out.weight"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_fedorgps_losses_by_hand() -> None:
    """At 45° from its own P̂, 0° from the second, and at a cosine of −0.6 from the third."""
    p = points((1, 0))
    prototypes = points((1, 1), (2, 0), (-3, 4))
    loss = FedORGP(gamma=3.0).server_loss(p, classes(0), prototypes, 0.0)
    assert float(loss) == pytest.approx(1 - sqrt(0.5) + 3 * (1 + 0.6) / 2)
    pull = FedORGP().pull(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[2.0, 0.0]]]))
    assert pull.tolist() == [[pytest.approx(0.4)]]


def test_fedorgps_prototypes_have_norm_one() -> None:
    method = FedORGP()
    started = method.server_start(2, 2, np.random.default_rng(0))
    trained, found = method.server_step(started, UPLOADS, SENT, np.random.default_rng(0))
    assert np.linalg.norm(found.floats()[0]) == pytest.approx(1, abs=1e-3)
    direction = generated(trained)[0] / generated(trained)[0].norm()
    assert found.floats()[0] == pytest.approx(direction.numpy(), abs=1e-3)


def test_a_vector_of_zeros_has_no_direction_and_a_bounded_gradient() -> None:
    p = torch.zeros(1, 1, 2, requires_grad=True)
    pull = FedORGP().pull(p, torch.ones(1, 1, 2))
    assert torch.autograd.grad(pull.sum(), p)[0].isfinite().all()


@pytest.mark.parametrize("name", TRAINED)
def test_without_uploads_the_server_stays_as_it_is(name: str) -> None:
    method = METHODS[name]()
    nobody = UPLOADS.only(np.zeros(1, np.bool_))
    before = server()
    assert method.server_step(before, nobody, SENT, np.random.default_rng(0)) == (before, SENT)


@pytest.mark.parametrize("name", TRAINED)
def test_clients_get_what_the_server_trained(mnist: Dataset, name: str) -> None:
    """Not the mean of what was sent; and what was learned goes on to the next round."""
    state, ((first,), (second,)) = run([tiny(method={"name": name})], mnist, 2)
    means = run([tiny(method={"name": "fedproto"})], mnist, 1)[0].globals_[0]
    found = state.globals_[0]
    assert found.present_J.tolist() == means.present_J.tolist()
    learned = METHODS[name]().outgoing(generated(state.server[0])).numpy()  # type: ignore[attr-defined]
    assert found.floats()[found.present_J] == pytest.approx(learned[found.present_J], abs=1e-4)
    assert (first.record.bytes_up, second.record.bytes_down) > (0, 0)


@pytest.mark.parametrize("name", TRAINED)
def test_a_filtered_upload_teaches_the_server_nothing(mnist: Dataset, name: str) -> None:
    attack = {"name": "scale", "clients": 1, "strength": 30.0}
    detector = {"name": "bft"}
    kept, _ = run([tiny(method={"name": name}, attack=attack)], mnist, 1)
    filtered, ((outcome,),) = run(
        [tiny(method={"name": name}, attack=attack, detector=detector)], mnist, 1
    )
    assert outcome.record.filtered
    assert not torch.equal(kept.server[0]["embedding"], filtered.server[0]["embedding"])


@pytest.mark.parametrize("name", TRAINED)
def test_a_committee_and_flower_are_refused(name: str) -> None:
    reason = f"'{name}' trains one trusted server .* single uploads"
    with pytest.raises(UserError, match=reason):
        tiny(method={"name": name}, committee={"name": "simulated"})
    with pytest.raises(UserError, match=reason):
        check_experiment(tiny(method={"name": name}))
