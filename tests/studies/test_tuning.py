"""λ is chosen on held-back samples for every method that has one, and controls stand beside all."""

import statistics

import pytest

from fedrfq.errors import UserError
from fedrfq.learning.round_loop import program_key
from fedrfq.methods import METHODS
from fedrfq.studies.compare import CONTROLS
from fedrfq.studies.grid import Grid
from fedrfq.studies.tuning import LAMS, TriedLam, best, lam_of
from support.command import CPU, fedrfq
from support.grids import comparison_of, found, grid_file, refused, table

# The last λ is too large for any training, and must not be chosen.
TOP = (
    "seeds = [0, 1, 2]\ncontrols = false\ntune = [0.2, 1, 1e38]\n"
    'axes.method = ["local", "fedproto"]'
)
SETTINGS = (
    "[axes.setting.few]\npartition = {ways = 2}\n[axes.setting.many]\npartition = {ways = 3}\n"
)


def compare(file, out, *more, expect=0):
    return fedrfq("compare", file, "--out", out, "--device", "cpu", *more, expect=expect)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    file = grid_file(folder, TOP, more=SETTINGS)
    return file, folder / "out", compare(file, folder / "out")


def trials(out, **wanted):
    """Return the tuning's runs with these ways and λ."""
    return [
        run
        for run in found(out, "grid-tuning").values()
        if (run.experiment().partition.ways, run.experiment().method.lam) == tuple(wanted.values())
    ]


def test_the_best_of_the_held_back_samples_is_chosen(tuned):
    _, out, _ = tuned
    choices = {choice["setting"]: choice for choice in table(out)["tuning"]}
    assert list(choices) == ["few", "many"]
    for ways, choice in zip((2, 3), choices.values(), strict=True):
        assert choice["method"] == "fedproto"
        assert choice["default"] == 1.0
        accuracies = {}
        for tried in choice["tried"][:2]:
            runs = trials(out, ways=ways, lam=tried["lam"])
            assert {run.experiment().seed for run in runs} == {0, 1}
            assert {run.experiment().validation for run in runs} == {choice["held_back"]} == {0.2}
            last = [run.rounds()[-1] for run in runs]
            own = statistics.fmean(record.accuracy_mean for record in last)
            prototype = statistics.fmean(record.prototype_accuracy_mean for record in last)
            assert tried["own"] == pytest.approx(own)
            assert tried["prototype"] == pytest.approx(prototype)
            accuracies[tried["lam"]] = own + prototype
        assert choice["tried"][2] == {"lam": 1e38, "own": None, "prototype": None}
        assert accuracies[choice["lam"]] == max(accuracies.values())


def test_the_comparison_runs_with_what_was_chosen_on_all_samples(tuned):
    _, out, _ = tuned
    lams = {choice["setting"]: choice["lam"] for choice in table(out)["tuning"]}
    for run in table(out)["runs"]:
        expected = lams[run["setting"]] if run["method"] == "fedproto" else None
        assert run["lam"] == expected
    for run in found(out).values():
        experiment = run.experiment()
        assert experiment.validation == 0
        if experiment.method.exchanges:
            assert experiment.method.lam == lams[{2: "few", 3: "many"}[experiment.partition.ways]]
    assert len(found(out)) == 2 * 2 * 3


def test_the_choice_is_printed(tuned):
    _, out, done = tuned
    choice = table(out)["tuning"][0]
    assert "tuning λ: 12 runs, 0 of them done; 12 to train in 1 stack" in done.stderr
    for text in (done.stdout, (out / "grid" / "table.md").read_text()):
        assert "λ chosen on held-back samples" in text
        first = choice["tried"][0]
        assert f"{first['own']:.2f} / {first['prototype']:.2f}" in text
        assert "with seeds 0, 1;" in text


def test_again_tunes_nothing_and_prints_the_same(tuned):
    file, out, done = tuned
    again = compare(file, out)
    assert again.stdout == done.stdout
    assert "tuning λ: 12 runs, 12 of them done; 0 to train" in again.stderr
    # A dry run knows by now what the comparison itself trains.
    dry = compare(file, out, "--dry-run").stderr.splitlines()
    assert dry[-1] == "12 runs, 12 of them done; 0 to train in 0 stacks"
    # Trained models are not kept: nothing but the accuracy is asked of these runs.
    finished = [run for run in found(out, "grid-tuning").values() if run.result()]
    assert len(finished) == 8
    assert not any(run.checkpoints() for run in finished)


def test_stopped_while_it_tunes_it_goes_on(tmp_path):
    file = grid_file(tmp_path, 'seeds = [0]\ntune = [0.2, 1]\naxes.method = ["fedproto", "fedrfq"]')
    tuning = comparison_of(file, controls=False).tuning
    steps = Grid(tuning.experiments, tmp_path / "out", CPU, 200, False).advance()
    for _ in range(5):
        next(steps)
    del steps  # nothing more is written: kill -9
    said = compare(file, tmp_path / "out", "--no-controls", "--dry-run").stderr
    assert "tuning λ: 4 runs, 2 of them done; 2 to train in 1 stack" in said
    assert "then 2 runs with the best λ" in said
    assert not (tmp_path / "out" / "grid").exists()


@pytest.mark.parametrize(
    ("accuracies", "default", "chosen"),
    [
        ([90.0, 92.0, 91.0], 1.0, 0.3),
        ([92.0, 92.0, 92.0], 1.0, 1.0),  # a tie goes to the default
        ([92.0, 92.0, 91.0], 1.0, 0.1),  # … if it is among the best, else to the first of them
        ([None, 80.0, None], 1.0, 0.3),
        ([None, None, None], 4.0, 4.0),
    ],
)
def test_the_best_lam(accuracies, default, chosen):
    tried = [TriedLam(lam, own) for lam, own in zip((0.1, 0.3, 1.0), accuracies, strict=True)]
    assert best(tried, default) == chosen


def test_the_best_lam_is_good_by_both_accuracies_where_a_method_has_both():
    tried = [TriedLam(0.3, 94.0, 10.0), TriedLam(1.0, 92.0, 90.0), TriedLam(4.0, 60.0, 91.0)]
    assert best(tried, 0.3) == 1.0


def test_a_method_with_fewer_seeds_is_tuned_with_these(tmp_path):
    more = '[[where]]\nmethod = "fedrfq"\nseeds = 1\n'
    top = 'seeds = [0, 1]\ntune = [0.2]\ncontrols = false\naxes.method = ["fedproto", "fedrfq"]'
    compare(grid_file(tmp_path, top, rounds=1, more=more), tmp_path / "out")
    assert [choice["method"] for choice in table(tmp_path / "out")["tuning"]] == [
        "fedproto",
        "fedrfq",
    ]


def test_equal_settings_count_once_in_what_a_dry_run_announces(tmp_path):
    more = (
        "[axes.setting.one]\npartition = {ways = 1, spread = 2}\n"
        "[axes.setting.other]\npartition = {ways = 2, spread = 1}\n"
    )
    top = 'seeds = [0]\ncontrols = false\naxes.method = ["fedproto"]'
    file = grid_file(tmp_path, top, more=more)
    assert "then 1 run " in compare(file, tmp_path / "out", "--dry-run").stderr


def test_every_method_with_a_lam_is_tuned_in_one_program_unless_the_file_sets_it(tmp_path):
    labels = "".join(f"[axes.method.{name}]\n" for name in METHODS)
    own = '[axes.method.mine]\nmethod = {name = "fedproto", lam = 0.5}\n'
    comparison = comparison_of(grid_file(tmp_path, f"seeds = [3, 4, 5]\n{labels}{own}"))
    tuning = comparison.tuning
    expected = {name for name, method in METHODS.items() if hasattr(method(), "lam")}
    assert {labels[-1] for labels, _ in tuning.tuned} == expected
    assert {seed for _, seed in tuning.tuned} == {3, 4}
    tried = [len({*LAMS, METHODS[name]().lam}) for name in expected]
    assert len(tuning.experiments) == 2 * sum(tried)
    assert len({program_key(experiment) for experiment in tuning.experiments}) == len(expected)
    assert lam_of(comparison.axes.experiments[("mine",), 3]) == 0.5


def test_the_default_is_always_tried(tmp_path):
    file = grid_file(tmp_path, 'seeds = [0]\ntune = [7, 0.5]\naxes.method = ["fedproto"]')
    tuning = comparison_of(file, controls=False).tuning
    assert [lam_of(experiment) for experiment in tuning.experiments] == [0.5, 1.0, 7.0]


def test_tuning_can_be_left_out(tmp_path):
    file = grid_file(tmp_path, 'seeds = [0]\naxes.method = ["fedproto"]')
    assert comparison_of(file).tuning.experiments
    assert not comparison_of(file, tune=False).tuning.experiments
    file = grid_file(tmp_path, 'seeds = [0]\naxes.method = ["fedproto"]\ntune = []')
    assert not comparison_of(file).tuning.experiments


def test_too_few_samples_to_hold_any_back(tmp_path):
    file = grid_file(tmp_path, 'seeds = [0]\naxes.method = ["fedproto"]')
    file.write_text(file.read_text().replace("shots = 6", "shots = 2"))
    said = compare(file, tmp_path / "out", expect=2).stderr
    assert "tuning λ: validation = 0.2 leaves client 0 nothing" in said
    assert "--no-tune" in said


@pytest.mark.parametrize("lams", ["0.5", "[1, 1]", "[-1]", "[nan]", "[true]", '["1"]'])
def test_bad_lams(tmp_path, lams):
    file = grid_file(tmp_path / "bad", f'seeds = [0]\naxes.method = ["local"]\ntune = {lams}')
    assert "tune must be a list of different λ" in refused("compare", file, tmp_path / "out")


def test_controls_come_first_beside_what_was_asked_for(tmp_path):
    file = grid_file(tmp_path, 'seeds = [0]\naxes.method = ["fedrfq", "fedproto", "local"]')
    comparison = comparison_of(file)
    assert comparison.axes.labels["method"] == (*CONTROLS, "fedrfq", "fedproto")
    assert "local" in CONTROLS
    assert comparison_of(file, controls=False).axes.labels["method"] == (
        "fedrfq",
        "fedproto",
        "local",
    )
    # Differences are still taken from what was asked for.
    file = grid_file(tmp_path, 'seeds = [0]\naxes.method = ["fedavg", "fedper"]')
    assert comparison_of(file).against == ("local", "fedavg")
    # Under another label it is the same run.
    file = grid_file(tmp_path, 'seeds = [0]\n[axes.method.alone]\nmethod = {name = "local"}')
    assert comparison_of(file).axes.labels["method"] == (*CONTROLS[1:], "alone")


def test_a_control_that_a_setting_makes_impossible_is_left_out_there_and_said_so(tmp_path):
    """A detector judges uploads, and controls send none."""
    more = '[axes.setting.peace]\n[axes.setting.guarded]\ndetector = {name = "bft"}'
    file = grid_file(tmp_path, 'seeds = [0, 1]\ntune = []\naxes.method = ["fedproto"]', more=more)
    comparison = comparison_of(file)
    assert (("peace", "local"), 0) in comparison.axes.experiments
    assert (("guarded", "local"), 0) not in comparison.axes.experiments
    done = compare(file, tmp_path / "out")
    whole = table(tmp_path / "out")
    assert "setting 'guarded', method 'local': detectors judge" in whole["left_out"][0]
    assert "detectors judge uploaded prototypes" in done.stdout
    cells = [(cell["setting"], cell["method"]) for cell in whole["cells"]]
    assert cells[:1] == [("peace", "local")]
    assert cells[-1:] == [("guarded", "fedproto")]
    assert ("guarded", "local") not in cells
    pairs = {(pair["setting"], pair["method"], pair["other"]) for pair in whole["pairs"]}
    assert ("peace", "local", "fedproto") in pairs
    assert not {("guarded", "local", "fedproto"), ("all settings", "local", "fedproto")} & pairs
    # What was asked for is refused instead.
    file = grid_file(tmp_path / "asked", 'seeds = [0]\naxes.method = ["local"]', more=more)
    assert "detectors judge" in refused("compare", file, tmp_path / "none")


def test_bad_controls(tmp_path):
    file = grid_file(tmp_path / "bad", 'seeds = [0]\naxes.method = ["local"]\ncontrols = "no"')
    assert "controls must be true or false" in refused("compare", file, tmp_path / "out")


def test_nothing_is_tuned_on_samples_that_an_epsilon_protects(tmp_path):
    """The best λ is known from accuracies on the samples, and noise in uploads hides no part."""
    noisy = 'public = {name = "random"}\nprivacy = {noise = 2.0}\n'
    top = 'axes.method = ["codes", "fedproto"]'
    with pytest.raises(UserError, match=r"of 'grid' would be chosen .* which its ε does not cover"):
        comparison_of(grid_file(tmp_path / "tuned", top, more=noisy))
    plan = comparison_of(grid_file(tmp_path / "untuned", f"tune = []\n{top}", more=noisy))
    assert not plan.before
    # Without an ε there is nothing to break.
    top = 'axes.method = ["fedproto"]\ncontrols = false'
    assert comparison_of(grid_file(tmp_path / "other", top, more=noisy)).before
