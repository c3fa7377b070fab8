"""`fedrfq audit-privacy` on real runs: one that leaks, and folders that are not as they should."""

import json
from unittest import mock

import numpy as np
import pytest
import torch

from fedrfq.errors import UserError
from fedrfq.experiment import from_table
from fedrfq.leakage import audit, map_uploads
from fedrfq.leakage.audit import LeakageAudit
from fedrfq.leakage.record import LEAKAGE, PICTURES, LeakageFigures, load_pictures
from fedrfq.learning.draws import deal
from fedrfq.privacy.drawn_uploads import FOLDER, DrawnUploads, UploadKey
from fedrfq.prototypes.fixed_point import Precision, decode
from fedrfq.report import run_page
from fedrfq.runs.run_directory import RunDirectory
from support.command import CPU, fedrfq

SMALL = ("clients=4", "rounds=3", "partition.ways=2", "partition.spread=0", "partition.shots=1")
# Noisy means are sent in rounds 1 and 3, prototypes in round 2.
MAP = (
    "public.name=random",
    "public.first=4",
    "public.second=4",
    "public.every=2",
    "privacy.noise=2",
)
AT_START = "0123456789abcdef"


@pytest.fixture(scope="module")
def leaking(_data_folder, tmp_path_factory):
    """Run clients of one sample a class, on a public map with noise and with prototypes."""
    out = tmp_path_factory.mktemp("leaking")
    sets = [word for key in (*SMALL, *MAP) for word in ("--set", key)]
    fedrfq("run", "--set", "name=r", *sets, "--out", str(out))
    (path,) = (out / "r").iterdir()
    facts = {"revision": AT_START}

    def dealt(*arguments):
        facts["revision"] = "changed while the audit ran"
        return deal(*arguments)

    with (
        mock.patch.object(audit, "here", return_value=facts),
        mock.patch.object(audit, "deal", dealt),
    ):
        fedrfq("audit-privacy", str(path), "--shadows", "3", "--pictures", "1", "--json")
    return path


def test_the_revision_is_that_of_the_audits_start(leaking):
    assert LeakageFigures.load(leaking).revision == AT_START


def _auc(found, upload, attacker):
    rows = [row for row in found.membership if upload in row.upload and row.attacker == attacker]
    return rows[0].auc


def test_a_run_of_single_samples_leaks_them(leaking):
    found = LeakageFigures.load(leaking)
    assert _auc(found, "no noise", "with shadows") > 0.9
    assert _auc(found, "prototypes of round 2, pooled", "with shadows") > 0.6
    assert found.counts.single_samples == found.counts.class_rows


def test_counts_are_those_that_left_where_all_have_noise(tmp_path):
    """Every client sends all classes, so these name nobody."""
    sets = [*SMALL, *MAP, "name=r", "method.name=local", "privacy.classes=all"]
    fedrfq("run", *(word for key in sets for word in ("--set", key)), "--out", str(tmp_path))
    (path,) = (tmp_path / "r").iterdir()
    made = LeakageAudit.of(RunDirectory.open(path), 3, 200, 0, 1, CPU, lambda *_: None)
    counts = made._counts()
    assert (counts.named_by_classes, counts.class_rows, counts.single_samples) == (1 / 4, 40, 0)
    drawn = DrawnUploads(path / FOLDER)
    sent_KJ = [
        decode(drawn.get(UploadKey("", 1, k)).content, 10, 64, Precision(8))[2] for k in range(4)
    ]
    assert (
        map_uploads.noisy_counts(made.run, made.experiment, 10).tolist()
        == np.array(sent_KJ).tolist()
    )
    assert made.notes == [
        "Counts have noise: somebody who knows what clients hold guesses the nearest."
    ]


def test_noise_is_set_beside_what_theory_allows(leaking):
    found = LeakageFigures.load(leaking)
    noisy = [row for row in found.membership if row.upload.startswith("noisy")]
    knowing = next(row for row in noisy if row.attacker == "knows all other samples")
    assert abs(knowing.auc - knowing.most) < 0.04
    assert 0.6 < knowing.most < 0.7


@pytest.fixture
def attacks(leaking):
    """Return the attacks on the run, as they are before they are made."""
    return LeakageAudit.of(RunDirectory.open(leaking), 3, 200, 0, 1, CPU, lambda *_: None)


def test_the_noise_that_the_run_drew_is_what_is_inverted(leaking, attacks):
    """Nothing else is noisy means; and the decoder is told how much noise is in them."""
    with mock.patch.object(audit, "rebuilt") as rebuilt:
        attacks._rebuilt(attacks._map_inverted)
    noisy, noiseless = (call.args[:3] for call in rebuilt.call_args_list)
    (one,) = noisy[2]
    content = DrawnUploads(leaking / FOLDER).get(UploadKey("", 1, one.client)).content
    _, _, _, values_JV = decode(content, 10, 64, Precision(8))
    assert noisy[0].startswith("noisy means on the public map, 8 bits, noise")
    assert noisy[1].means_RV[0].tolist() == (values_JV[one.label] / 2**14).tolist()
    # One sample; Δ is C of 8, and a ninth of its square for the count.
    assert float(noisy[1].noise_R[0]) == pytest.approx(2 * 8 / 0.9**0.5, rel=1e-3)
    assert noiseless[0] == "means on the public map, 8 bits, had there been no noise"
    own_1V = attacks._vectors(one.index_C[:1])
    assert noiseless[1].means_RV.numpy() == pytest.approx(own_1V.numpy(), abs=1 / 32)
    assert noiseless[1].noise_R.tolist() == [0]


def test_membership_on_this_run_alone_is_of_the_noise_that_it_drew(leaking, attacks):
    sent, *others = attacks._map_uploads
    assert sent.was_sent
    assert sent.recorded.keys() >= {(0, label) for label in attacks.partition.classes[0].tolist()}
    assert not any(other.was_sent or other.recorded for other in others)


def test_images_from_noisy_means_are_worse(leaking):
    decoded = {
        row.upload.split(",")[0]: row
        for row in reversed(LeakageFigures.load(leaking).inversion)
        if row.way == "decoder"
    }
    assert decoded["noisy means on the public map"].psnr_mean < (
        decoded["means on the public map"].psnr_mean - 0.5
    )


def test_that_several_noisy_uploads_allow_more_is_noted(leaking):
    (note,) = LeakageFigures.load(leaking).notes
    # Φ(√2 / (2 √2)), of two uploads.
    assert "sent 2 times" in note
    assert note.endswith("allow an AUC of 0.691.")


def test_noisy_prototypes_are_named_and_attacked_as_they_were_sent(attacks):
    private = {"noise": 2.0, "prototype_norm": 4.0}
    experiment = from_table(
        {**attacks.experiment.table(), "privacy": private, "train": {"dp_noise": 1.0}}
    )
    attacks.experiment = experiment
    sent, *others = attacks._prototype_forms()
    pooled = f"prototypes of round 2, pooled, {experiment.method.precision().bits} bits"
    assert attacks._prototypes_name(sent, 2) == f"noisy {pooled}"
    assert attacks._prototypes_name(others[0], 2) == f"{pooled}, had there been no noise"
    assert sent.scale == experiment.privacy.prototype_scale(experiment.prototype_size())
    features_FND = torch.ones(1, 5, 50)
    assert sent.uploads(features_FND).shape == others[0].uploads(features_FND).shape
    assert abs(sent.uploads(features_FND) - others[0].uploads(features_FND)).mean() > 0.5


def test_pictures_and_figures_are_in_the_report(leaking):
    page = run_page.page(leaking)
    (section,) = [one for one in page.sections if one.title == "What uploads reveal"]
    assert "data:image/png;base64," in section.body
    assert "with shadows" in section.body
    ways = {row.way for row in LeakageFigures.load(leaking).inversion}
    assert len(ways) == 3
    # The noisy means, the same without noise, and prototypes.
    assert len({row.upload for row in LeakageFigures.load(leaking).inversion}) == 3


def _with(row, **damage):
    return [{**row, **damage}]


def test_damaged_figures_are_refused_on_one_line(leaking, tmp_path):
    table = json.loads((leaking / LEAKAGE).read_text())
    row = table["membership"][0]
    for damage in (
        {"shadows": "many"},
        {"shadows": True},
        {"seed": 1.5},
        {"revision": ["<script>"]},
        {"notes": "a text"},
        {"notes": [{}]},
        {"counts": []},
        {"counts": {**table["counts"], "clients": "4"}},
        {"membership": [{}]},
        {"membership": 201 * [row]},
        {"membership": _with(row, upload=7)},
        {"membership": _with(row, auc="0.5")},
        {"membership": _with(row, auc=None)},
        # A number of which no text with three digits after the point can be made.
        {"membership": _with(row, auc=10**400)},
        {"membership": _with(row, auc=float("nan"))},
        {"inversion": _with(table["inversion"][0], images=False)},
    ):
        (tmp_path / LEAKAGE).write_text(json.dumps({**table, **damage}))
        with pytest.raises(UserError, match="audit-privacy"):
            LeakageFigures.load(tmp_path)
    (tmp_path / PICTURES).write_bytes(b"<svg onload=alert(1)>")
    with pytest.raises(UserError, match="PNG"):
        load_pictures(tmp_path)


def test_other_data_than_the_run_had_are_refused(leaking):
    run = RunDirectory.open(leaking)
    facts = run.environment()
    facts["data"]["sha256"] = "0" * 64
    before = (leaking / "environment.json").read_text()
    run.write("environment.json", json.dumps(facts))
    try:
        with pytest.raises(UserError, match="data changed"):
            LeakageAudit.of(run, 3, 2000, 0, 1, CPU, lambda *_: None)
    finally:
        run.write("environment.json", before)
