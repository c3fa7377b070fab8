"""`fedrfq audit-privacy` on real runs: one that leaks, and folders that are not as they should."""

import json
from unittest import mock

import pytest

from fedrfq.errors import UserError
from fedrfq.leakage import audit
from fedrfq.leakage.audit import LeakageAudit
from fedrfq.leakage.record import LEAKAGE, PICTURES, LeakageFigures, load_pictures
from fedrfq.learning.draws import deal
from fedrfq.report import run_page
from fedrfq.runs.run_directory import RunDirectory
from support.command import CPU, fedrfq

SMALL = ("clients=4", "rounds=2", "partition.ways=2", "partition.spread=0", "partition.shots=1")
MAP = ("public.name=random", "public.first=4", "public.second=4", "privacy.noise=2")
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


def test_noise_is_set_beside_what_theory_allows(leaking):
    found = LeakageFigures.load(leaking)
    noisy = [row for row in found.membership if row.upload.startswith("noisy")]
    knowing = next(row for row in noisy if row.attacker == "knows all other samples")
    assert abs(knowing.auc - knowing.most) < 0.04
    assert 0.6 < knowing.most < 0.7


def test_pictures_and_figures_are_in_the_report(leaking):
    page = run_page.page(leaking)
    (section,) = [one for one in page.sections if one.title == "What uploads reveal"]
    assert "data:image/png;base64," in section.body
    assert "with shadows" in section.body
    ways = {row.way for row in LeakageFigures.load(leaking).inversion}
    assert len(ways) == 3


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
            LeakageAudit.of(run, 3, 0, 1, CPU, lambda *_: None)
    finally:
        run.write("environment.json", before)
