"""Attacks on uploads win where there is something to win, and nothing where there is not."""

import numpy as np
import pytest
import torch

from fedrfq.data.partition import Partition
from fedrfq.engine.threads import one_thread
from fedrfq.leakage.candidates import Candidates, candidates, partitions
from fedrfq.leakage.class_counts import count_figures
from fedrfq.leakage.inversion import PublicImages, Wanted, decoded, optimised, psnr, ssim
from fedrfq.leakage.known_others import best_auc, without_noise
from fedrfq.leakage.likelihood_ratio import log_ratios
from fedrfq.leakage.membership import UploadForm, attacked
from fedrfq.leakage.roc import Scored
from fedrfq.leakage.shadows import Seen
from fedrfq.leakage.with_noise import NoisyForm, known_others
from fedrfq.learning.draws import deal
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import Precision
from fedrfq.prototypes.pooling import Pool
from support.small import tiny

VALUES = 16
FORM = UploadForm(Pool("none"), Precision(16))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def _scored(scores, members, groups=None):
    if groups is None:
        groups = range(len(scores))
    return Scored(np.array(scores, float), np.array(members, bool), np.array(groups))


def _seen(rng, members, clients=12, federations=9, blind=False):
    """Return what is seen of clients with random vectors; `blind` uploads tell nothing."""
    found = []
    for client in range(clients):
        held_FC = np.zeros((federations, 2 * members), bool)
        held_FC[0, :members] = True
        for row in held_FC[1:]:
            row[rng.permutation(2 * members)[:members]] = True
        asked = Candidates(client, 0, np.arange(2 * members), members, held_FC)
        z_CV = torch.from_numpy(rng.normal(size=(2 * members, VALUES)))
        seen = Seen.of(asked, z_CV.expand(federations, -1, -1))
        if blind:
            strangers = torch.from_numpy(rng.normal(size=seen.own_FND.shape))
            seen = Seen(asked, strangers, seen.targets_FTD)
        found.append(seen)
    return found


def test_auc_and_hits_by_hand(rng):
    # Of the six pairs of a member and another, the member is ahead in four, and one is a tie.
    roc = _scored([5, 4, 3, 3, 1], [1, 0, 1, 0, 1]).roc(rng)
    assert roc.auc.value == pytest.approx((2 + 0.5 + 0) / 6)
    assert roc.hits.value == pytest.approx(1 / 3)
    assert (roc.members, roc.others) == (3, 2)


def test_equal_scores_are_a_coin(rng):
    roc = _scored([1] * 10, [1, 0] * 5).roc(rng)
    assert roc.auc.value == 0.5
    assert roc.hits.value == 0


def _clients(rng, leaks, clients=30, targets=20):
    """Return targets of clients that differ in how much they leak, or else in all scores alike."""
    members = np.arange(clients * targets) % 2
    differs = np.repeat(4 * rng.normal(size=clients), targets)
    if leaks:
        differs = differs * members
    scores = rng.normal(size=len(members)) + members + differs
    return scores, members, np.repeat(np.arange(clients), targets)


def _width(rocs):
    return np.mean([roc.auc.high - roc.auc.low for roc in rocs])


@pytest.mark.parametrize(("leaks", "least", "most"), [(True, 0.2, 0.6), (False, 1.5, 3)])
def test_intervals_are_as_wide_as_figures_vary_from_clients_to_clients(rng, leaks, least, most):
    """Targets that stood for themselves would vary less where leaks differ, else too much."""
    drawn = [_clients(rng, leaks) for _ in range(40)]
    together = [_scored(*one).roc(rng) for one in drawn]
    apart = [_scored(scores, members).roc(rng) for scores, members, _ in drawn[:5]]
    varied = 2 * 1.96 * np.std([roc.auc.value for roc in together])
    assert _width(together) / varied == pytest.approx(1, abs=0.3)
    assert least < _width(apart) / varied < most


@pytest.mark.parametrize(("members", "least"), [(1, 0.99), (4, 0.85)])
def test_shadows_find_members_of_small_classes(rng, members, least):
    success = attacked(_seen(rng, members), FORM, {}, rng)
    assert success.alike.auc.value > least
    assert success.run.auc.value > least


def test_shadows_are_at_chance_where_uploads_tell_nothing(rng):
    success = attacked(_seen(rng, 4, clients=80, blind=True), FORM, {}, rng)
    assert success.alike.auc.low < 0.5 < success.alike.auc.high
    assert abs(success.alike.auc.value - 0.5) < 0.02


def test_likelihood_ratios_have_no_unit(rng):
    """Else clients with long vectors would be heard, and those with short ones would not."""
    (one,) = _seen(rng, 4, clients=1)
    uploads_FV = FORM.uploads(one.own_FND)
    features_FTV = FORM.features(one.targets_FTD)
    member_FT = one.asked.member_FT
    ratios_FT = log_ratios(uploads_FV, member_FT, features_FTV, np.eye(VALUES))
    longer_FT = log_ratios(8 * uploads_FV, member_FT, 8 * features_FTV, np.eye(VALUES))
    assert longer_FT == pytest.approx(ratios_FT)
    assert ratios_FT[member_FT].mean() > 0 > ratios_FT[~member_FT].mean()


def test_what_the_run_recorded_is_attacked_and_not_what_was_computed_again(rng):
    seen = _seen(rng, 1)
    # What a client recorded is the other candidate's vector.
    recorded = {
        (one.asked.client, 0): np.rint(one.targets_FTD[0, 1].numpy() * 2**14).astype(int)
        for one in seen
    }
    assert attacked(seen, FORM, recorded, rng).run.auc.value < 0.2


def test_who_knows_all_others_wins_without_noise(rng):
    assert without_noise(_seen(rng, 5), FORM).roc(rng).auc.value == pytest.approx(1)


def test_who_knows_all_others_wins_less_on_a_coarser_grid(rng):
    coarse = UploadForm(Pool("none"), Precision(4))
    assert without_noise(_seen(rng, 40, clients=3), coarse).roc(rng).auc.value < 0.999


def _noisy(rng, noise, questions=2400, length=VALUES**0.5):
    """Ask about classes of 2 to 14 samples, whose vectors have a length: C as on a public map."""
    classes = [np.abs(rng.normal(size=(members, VALUES))) for members in (2, 5, 8, 11, 14)]
    classes = [z_NV * length / np.linalg.norm(z_NV, axis=1, keepdims=True) for z_NV in classes]
    scale = Privacy(noise=noise).scale(VALUES**0.5, VALUES)
    form = NoisyForm(scale, Precision(12), source=rng.bytes)
    return form, known_others(classes, form, questions).roc(rng)


def test_with_noise_it_wins_what_theory_allows_and_no_more(rng):
    """ε = 2 at δ = 10⁻⁵ is a noise of 1.994: an AUC of about 0.64."""
    form, roc = _noisy(rng, 1.994)
    assert form.most == pytest.approx(0.6385, abs=0.002)
    assert abs(roc.auc.value - form.most) < 0.02
    assert roc.auc.low < form.most


def test_with_hardly_any_noise_it_wins(rng):
    form, roc = _noisy(rng, 0.3, 200)
    assert roc.auc.value > 0.97
    assert form.most > 0.98


def test_a_sample_that_moves_no_value_is_told_by_the_count(rng):
    _, roc = _noisy(rng, 0.3, 400, length=0)
    assert roc.auc.low > 0.6


def test_theory_at_the_ends():
    assert best_auc(0) == 0.5
    assert best_auc(20) == pytest.approx(1)


def test_shadows_hold_as_many_samples_as_the_run(mnist, rng):
    experiment = tiny()
    dealt = deal(experiment, mnist)
    asked = candidates(mnist, dealt, range(experiment.clients), 4, rng)
    parts = partitions(dealt, asked, 4)
    for own, again in zip(dealt.train, parts[0].train, strict=True):
        assert own.tolist() == again.tolist()
    for shadow in parts[1:]:
        for client, own in enumerate(shadow.train):
            before = np.bincount(mnist.train_y[dealt.train[client]], minlength=10)
            assert np.bincount(mnist.train_y[own], minlength=10).tolist() == before.tolist()
            assert own.tolist() != dealt.train[client].tolist()


def test_non_members_are_first_those_that_nobody_holds(mnist, rng):
    dealt = deal(tiny(), mnist)
    # Another client holds four fifths of all samples that the first does not.
    rest = np.setdiff1d(np.arange(len(mnist.train_y)), dealt.train[0])
    held = np.delete(rest, np.s_[::5])
    crowded = Partition.of(mnist, (dealt.train[0], held), dealt.test[:2])
    for one in candidates(mnist, crowded, [0], 2, rng):
        others = one.index_C[one.members :]
        assert len(others) == one.members
        assert not np.isin(others, held).any()
        assert set(mnist.train_y[one.index_C]) == {one.label}


def test_what_counts_reveal_by_hand():
    figures = count_figures(np.array([[3, 0], [3, 0], [2, 0], [1, 1]]))
    assert figures.unique_by_classes == 1
    assert figures.named_by_classes == 2 / 4
    assert figures.unique_by_counts == 2
    assert figures.named_by_counts == 3 / 4
    assert (figures.single_samples, figures.class_rows) == (2, 5)


def test_what_noisy_counts_reveal_by_hand():
    """All declare both classes, and the nearest client is the second for the first two."""
    held_KJ = np.array([[3, 0], [6, 1], [0, 8], [1, 1]])
    figures = count_figures(held_KJ, np.array([[5, 1], [7, 2], [1, 6], [0, 0]]))
    assert (figures.clients, figures.class_rows, figures.single_samples) == (4, 6, 0)
    # Of classes, each upload is equally near to the second and the fourth; the last sent none.
    assert figures.named_by_classes == pytest.approx((0 + 1 / 2 + 0) / 3)
    assert figures.unique_by_classes == 0
    assert figures.named_by_counts == pytest.approx(2 / 3)
    assert figures.unique_by_counts == 2


def test_pixels_are_found_from_a_vector_that_tells_them():
    generator = torch.Generator().manual_seed(0)
    image = 255 * torch.rand((1, 1, 6, 6), generator=generator)
    mix = torch.randn((36, 36), generator=generator)

    def to_vectors(images):
        return images.flatten(1) / 255 @ mix

    with one_thread():
        made = optimised(to_vectors, to_vectors(image), (1, 6, 6), generator)
    flat = torch.full_like(image, float(image.mean()))
    assert psnr(made, image) > psnr(flat, image) + 5


def _grey(value, noise):
    """Return how bright a decoder makes an image, given a noisy vector that says so."""
    generator = torch.Generator().manual_seed(0)
    shades = 255 * torch.rand((80, 1, 1, 1), generator=generator).expand(-1, 1, 4, 4)
    vectors_PV = shades[:, 0, :2, 0] / 255
    public = PublicImages(shades, vectors_PV[None], torch.tensor([0]), torch.tensor([80]))
    wanted = Wanted(torch.full((1, 2), value), torch.ones(1), torch.full((1,), noise))
    with one_thread():
        return float(decoded(wanted, public, generator).mean())


def test_a_decoder_learns_from_public_images_what_a_vector_looks_like():
    assert abs(_grey(0.8, 0.0) - 0.8 * 255) < 20


def test_a_decoder_believes_noisy_vectors_the_less():
    """Where noise drowns all that images differ in, the average image is the best guess."""
    assert _grey(5.0, 0.0) > 250
    assert abs(_grey(5.0, 10.0) - 128) < 40


def test_an_image_is_like_itself():
    image = 255 * torch.rand((2, 1, 9, 9))
    assert ssim(image, image) == pytest.approx(torch.ones(2))
    assert psnr(image, image).tolist() == pytest.approx([60, 60], abs=0.1)
    assert (ssim(image, 255 - image) < 0.5).all()
