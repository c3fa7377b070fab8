"""Runs as users start, stop and lose them: real processes, real signals, real files."""

import csv
import io
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from fedrfq import UserError, cli, data, experiment, run, tensors
from fedrfq.records import RunDirectory
from fedrfq.session import Session, pick_device

SMALL = ["clients=6", "rounds=8", "checkpoint=2", "partition.shots=8", "partition.test_shots=5"]
CPU = torch.device("cpu")
TIMES = ("seconds", "seconds_train")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedrfq.cli", *(str(argument) for argument in arguments)]


def sets(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def fedrfq(*arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """The command in this process, from its entry point: its exit code, and what it printed."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(errors), mock.patch.object(sys, "argv", ["fedrfq", *map(str, arguments)]):
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    assert code == expect, errors.getvalue()
    return subprocess.CompletedProcess([], code, out.getvalue(), errors.getvalue())


def only_run(out: Path) -> RunDirectory:
    (path,) = out.glob("*/*")
    return RunDirectory.open(path)


def records(path: Path) -> list[dict]:
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def clients(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((path / "clients.csv").read_text().splitlines()))


def assert_same_run(one: Path, other: Path) -> None:
    """Records, clients' figures and tensors, to the byte, times aside."""
    assert records(one) == records(other)
    assert (one / "clients.csv").read_bytes() == (other / "clients.csv").read_bytes()
    (left,), (right,) = RunDirectory.open(one).checkpoints().items(), RunDirectory.open(other).checkpoints().items()
    assert left[0] == right[0]
    assert left[1].read_bytes() == right[1].read_bytes()


def started(out: Path, settings: list[str], rounds: int, *more: object) -> tuple[subprocess.Popen[str], Path]:
    """A run in the background that has recorded at least that many rounds."""
    process = subprocess.Popen(
        command("run", *sets(settings), "--out", out, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        files = sorted(out.glob("*/*/rounds.jsonl"))
        if files and all(file.read_text().count("\n") >= rounds for file in files):
            return process, files[0].parent
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)
    raise AssertionError("the run did not get going")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The small experiment, never interrupted."""
    out = tmp_path_factory.mktemp("whole")
    fedrfq("run", *sets(SMALL), "--out", out)
    return only_run(out).path


def test_json_is_the_last_line_and_says_what_it_must(tmp_path):
    done = fedrfq("run", *sets([*SMALL, "rounds=2"]), "--out", tmp_path, "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    needed = ["method", "data", "rounds", "accuracy_mean", "accuracy_std", "prototype_accuracy_mean", "prototype_failure"]
    needed += ["silhouette", "parameters_per_round", "bytes_per_round", "samples_per_second", "seconds", "run_dir"]
    assert set(needed) <= set(result)
    assert all(result[key] is not None for key in needed)
    assert result["method"] == "fedrfq"
    assert result["rounds"] == 2
    found = RunDirectory.open(Path(result["run_dir"]))
    assert result["parameters_per_round"] == 24 * sum(int(row["classes"]) for row in clients(found.path)[-6:])


def test_directory_holds_what_was_run(whole):
    found = RunDirectory.open(whole)
    environment = found.environment()
    assert found.experiment().partition.shots == 8
    assert environment["data"]["sha256"] == data.load("mnist5k").sha256
    assert environment["versions"]["torch"] == torch.__version__.split("+")[0] or environment["versions"]["torch"]
    assert environment["partition"]["classes_mean"] > 1
    assert [record.round for record in found.rounds()] == list(range(1, 9))
    assert len(clients(whole)) == 8 * 6
    assert list(found.checkpoints()) == [8]
    assert found.result()["silhouette"] == pytest.approx(found.result()["silhouette"])


@pytest.mark.parametrize("rounds", [1, 3, 6])
def test_kill_9_then_resume_ends_as_if_never_stopped(tmp_path, whole, rounds):
    process, path = started(tmp_path, SMALL, rounds)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with (path / "rounds.jsonl").open("a") as file:  # and the last line torn
        file.write('{"round": 99, "accur')
    fedrfq("resume", path)
    assert_same_run(path, whole)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, whole, stop):
    process, path = started(tmp_path, [*SMALL, "checkpoint=100"], 2)
    process.send_signal(stop)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"fedrfq resume {path}" in errors
    assert list(RunDirectory.open(path).checkpoints()) == [len(records(path))]
    fedrfq("resume", path)
    assert records(path) == records(whole)


def test_stacked_seeds_killed_and_resumed_together(tmp_path):
    fedrfq("run", *sets(SMALL), "--out", tmp_path / "whole", "--seed", 0, "--seed", 1)
    process, path = started(tmp_path / "killed", SMALL, 3, "--seed", 0, "--seed", 1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    fedrfq("resume", path)
    pairs = zip(sorted((tmp_path / "whole").glob("*/*")), sorted((tmp_path / "killed").glob("*/*")), strict=True)
    for one, other in sorted(pairs):
        assert_same_run(one, other)


def test_same_command_same_bytes(tmp_path, whole):
    fedrfq("run", *sets(SMALL), "--out", tmp_path)
    assert_same_run(only_run(tmp_path).path, whole)


def test_resuming_a_finished_run_changes_nothing(whole):
    before = records(whole)
    assert "8 of 8" in fedrfq("resume", whole).stdout
    assert records(whole) == before


def test_participation_resumes_too(tmp_path):
    settings = [*SMALL, "participation=0.5"]
    fedrfq("run", *sets(settings), "--out", tmp_path / "whole")
    process, path = started(tmp_path / "killed", settings, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    fedrfq("resume", path)
    assert_same_run(path, only_run(tmp_path / "whole").path)


def small_session(out: Path, *more: str) -> Session:
    return Session.begin([experiment.load(sets=[*SMALL, *more])], CPU, out)


def test_checkpoint_of_another_experiment_is_refused(tmp_path):
    session = small_session(tmp_path, "rounds=2")
    list(session.advance())
    path = session.runs[0].path / "experiment.toml"
    path.write_text(path.read_text().replace("lam = 1.0", "lam = 0.5"))
    with pytest.raises(UserError, match="checkpoint of another experiment"):
        Session.resume(session.runs[0].path, CPU)


def test_changed_data_is_noticed(tmp_path):
    session = small_session(tmp_path, "rounds=2")
    path = session.runs[0].path / "environment.json"
    path.write_text(path.read_text().replace(session.federation.dataset.sha256, "0" * 64))
    with pytest.raises(UserError, match="the data changed"):
        Session.resume(session.runs[0].path, CPU)


def test_not_a_run_directory(tmp_path):
    assert "not a run's directory" in fedrfq("resume", tmp_path, expect=2).stderr


def test_nan_loss_names_client_round_and_checkpoint(tmp_path):
    done = fedrfq("run", *sets([*SMALL, "train.lr=1e30"]), "--out", tmp_path, expect=2)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "client" in line
    assert "round" in line
    assert "checkpoint" in line
    assert "Traceback" not in done.stderr


def test_full_disk_is_one_line_and_loses_nothing(tmp_path):
    """A limit on the size of files is as good as a full disk: writes fail in the middle of the run."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # records fit, the checkpoint does not

    done = subprocess.run(
        command("run", *sets(SMALL), "--out", tmp_path), capture_output=True, text=True, preexec_fn=limit, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    path = only_run(tmp_path).path
    assert not list(path.rglob("*.tmp"))
    assert not list((path / "checkpoints").iterdir())
    fedrfq("resume", path)
    assert len(records(path)) == 8


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["method.lambda=1"], "did you mean lam"),
        (["train.lr=fast"], "train.lr must be a number"),
        (["partition.ways=11"], "10 classes"),
        (["partition.shots=0"], "shots"),
        (["pool.kernel=3"], "larger than the 2×25 map"),
        (["data.name=nowhere"], "nowhere"),
        (["clients=500"], "lower clients to"),
        (["method.name=local", "pool.name=avg"], "does not pool"),
    ],
)
def test_bad_settings_are_one_line_and_leave_nothing(tmp_path, settings, says):
    done = fedrfq("run", *sets(settings), "--out", tmp_path / "out", expect=2)
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert not (tmp_path / "out").exists()


def test_dry_run_shows_the_partition_and_writes_nothing(tmp_path):
    done = fedrfq("run", *sets(SMALL), "--out", tmp_path / "out", "--dry-run")
    assert "training samples" in done.stdout
    assert "expected time" in done.stdout
    assert not (tmp_path / "out").exists()


def test_config_can_be_run_and_gives_the_same(tmp_path, whole):
    file = tmp_path / "mine.toml"
    file.write_text(fedrfq("config", *sets(SMALL)).stdout)
    fedrfq("run", file, "--out", tmp_path / "out")
    assert_same_run(only_run(tmp_path / "out").path, whole)


def test_show_draws_the_curve(whole):
    (whole / "accuracy.png").unlink(missing_ok=True)
    assert "accuracy, own head" in fedrfq("show", whole).stdout
    assert (whole / "accuracy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("what", ["methods", "models", "data", "partitions", "pools"])
def test_lists(what):
    assert what in fedrfq("list", what).stdout


def test_list_of_nonsense():
    assert "methods" in fedrfq("list", "cheeses", expect=2).stderr


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> list[Path]:
    from PIL import Image

    folder, dataset = tmp_path_factory.mktemp("pictures"), data.load("mnist5k")
    for i in range(4):
        Image.fromarray(dataset.test_x[100 * i, 0]).save(folder / f"{i}.png")
    return [folder / f"{i}.png" for i in range(4)]


def test_predictions_are_those_of_the_trained_model(whole, pictures):
    done = fedrfq("predict", whole, 2, *pictures, "--json")
    found = json.loads(done.stdout.splitlines()[-1])["predictions"]
    assert [row["file"] for row in found] == [str(path) for path in pictures]
    assert all(row["class"] in "0123456789" and row["nearest_prototype"] in "0123456789" for row in found)


def test_predict_refuses_what_is_no_picture_and_wrong_sizes(whole, pictures, tmp_path):
    (tmp_path / "text.png").write_text("hello")
    assert "expected a PNG or JPEG image" in fedrfq("predict", whole, 0, tmp_path / "text.png", expect=2).stderr
    assert "clients 0 to 5" in fedrfq("predict", whole, 6, pictures[0], expect=2).stderr
    from PIL import Image

    Image.new("L", (30, 30)).save(tmp_path / "large.png")
    assert "30×30" in fedrfq("predict", whole, 0, tmp_path / "large.png", expect=2).stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_exports_compute_the_same(whole, pictures, tmp_path):
    import onnxruntime

    from fedrfq.trained import Client

    client = Client.load(RunDirectory.open(whole), 1)
    x = client.images(pictures)
    logits, features = (t.detach().numpy() for t in client.module(x))
    scripted = torch.jit.load(str(client.export(tmp_path / "a.pt", "torchscript")))(x)
    np.testing.assert_allclose(scripted[0].detach().numpy(), logits, rtol=1e-5, atol=1e-5)
    session = onnxruntime.InferenceSession(str(client.export(tmp_path / "a.onnx", "onnx")))
    answered = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(answered[0], logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(answered[1], features, rtol=1e-4, atol=1e-4)
    stored, _ = tensors.load(client.export(tmp_path / "a.safetensors", "safetensors"))
    assert set(stored) == set(client.params)
    assert (tmp_path / "a.pt").stat().st_size < 250_000  # one client's model, not the stack it came from


def test_export_command_writes_beside_the_run(whole):
    done = fedrfq("export", whole, 0)
    assert Path(done.stdout.split("wrote ")[1].strip()).is_file()


def test_five_lines_of_python(tmp_path):
    shown = [record.accuracy_mean for record in run(experiment.load(sets=[*SMALL, "rounds=2"]), "cpu", tmp_path)]
    assert len(shown) == 2
    assert only_run(tmp_path).result() is not None


def test_devices():
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="auto, cpu, cuda"):
        pick_device("toaster")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="use --device cpu"):
            pick_device("cuda")


def test_help_gives_an_example():
    for name in ("run", "resume", "show", "config", "list", "predict", "export"):
        assert "Example: fedrfq" in fedrfq(name, "--help").stdout


def test_the_installed_command_answers():
    done = subprocess.run(command("config"), capture_output=True, text=True, timeout=60)
    assert tomllib.loads(done.stdout)["method"]["name"] == "fedrfq"


def damaged(run_: Path, tmp_path: Path, name: str, text: str) -> Path:
    """A copy of the run with one file replaced."""
    copy = tmp_path / "copy"
    shutil.copytree(run_, copy)
    (copy / name).write_text(text)
    return copy


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rounds.jsonl", "garbage\n"),
        ("rounds.jsonl", "[1]\n"),
        ("rounds.jsonl", ""),
        ("clients.csv", ""),
        ("clients.csv", "round,client\n1,2\n"),
        ("environment.json", '{"stack": 3}'),
        ("environment.json", "{"),
        ("environment.json", "[1]"),
        ("environment.json", '{"stack": ["."], "versions": null, "data": {}}'),
        ("environment.json", '{"stack": ["."], "data": 3}'),
        ("experiment.toml", "rounds = "),
    ],
)
def test_a_damaged_directory_is_one_line(whole, tmp_path, name, text):
    done = fedrfq("resume", damaged(whole, tmp_path, name, text), expect=2)
    assert done.stderr.startswith(("error: ", "note: "))
    assert "Traceback" not in done.stderr


def test_records_shorter_than_the_checkpoint_are_refused(whole, tmp_path):
    kept = "".join(line + "\n" for line in (whole / "rounds.jsonl").read_text().splitlines()[:4])
    done = fedrfq("resume", damaged(whole, tmp_path, "rounds.jsonl", kept), expect=2)
    assert "records of 4 rounds but a checkpoint of round 8" in done.stderr


def test_a_truncated_checkpoint_and_foreign_files(whole, tmp_path):
    copy = damaged(whole, tmp_path, "checkpoints/round-abc.safetensors", "not ours")
    assert "8 of 8" in fedrfq("resume", copy).stdout
    checkpoint = copy / "checkpoints" / "round-000008.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    assert "not a usable safetensors file" in fedrfq("resume", copy, expect=2).stderr


def test_ctrl_c_ends_a_long_round_with_its_step(tmp_path):
    """A round of many epochs is interrupted in the middle; a checkpoint of the round before is there."""
    process, path = started(tmp_path, [*SMALL, "rounds=2", "checkpoint=1", "train.epochs=40"], 1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped after round 1" in errors
    assert list(RunDirectory.open(path).checkpoints()) == [1]


def test_a_trained_model_needs_no_data(whole, pictures, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr(data, "load", None)
    assert fedrfq("predict", whole, 2, pictures[0]).stdout
    from fedrfq.trained import Client

    client = Client.load(RunDirectory.open(whole), 1)
    _, metadata = tensors.load(client.export(tmp_path / "a.safetensors", "safetensors"))
    assert json.loads(metadata["classes"]) == list("0123456789")
    assert json.loads(metadata["shape"]) == [1, 28, 28]


def test_a_batch_larger_than_any_client_costs_nothing_more(tmp_path):
    whole_batch, larger = (
        fedrfq("run", *sets([*SMALL, "rounds=1", f"train.batch_size={size}"]), "--out", tmp_path / str(size), "--json")
        for size in (40, 10**9)
    )
    left, right = (json.loads(done.stdout.splitlines()[-1]) for done in (whole_batch, larger))
    assert left["accuracy_mean"] == right["accuracy_mean"]


def test_out_of_memory_is_one_line(tmp_path):
    done = fedrfq("run", *sets([*SMALL, "model.channels=900000000"]), "--out", tmp_path, expect=2)
    assert "out of memory" in done.stderr.splitlines()[-1]


def test_a_round_recorded_but_interrupted_is_recorded_once(tmp_path):
    session = small_session(tmp_path, "rounds=3")
    next(session.advance())
    session.runs[0].append(session.federation.advance(session.state)[1][0])  # and then the interrupt
    list(session.advance())
    assert [record.round for record in session.runs[0].rounds()] == [1, 2, 3]


def test_garbage_after_the_checkpoint_does_not_matter(whole, tmp_path):
    text = (whole / "rounds.jsonl").read_text() + "\0\0\0\n"
    assert "8 of 8" in fedrfq("resume", damaged(whole, tmp_path, "rounds.jsonl", text)).stdout


def test_grey_pictures_saved_in_colour_are_grey(whole, pictures, tmp_path):
    from PIL import Image

    Image.open(pictures[0]).convert("RGB").save(tmp_path / "rgb.png")
    Image.new("RGB", (28, 28), (255, 0, 0)).save(tmp_path / "red.png")
    same = [
        json.loads(fedrfq("predict", whole, 0, path, "--json").stdout.splitlines()[-1])
        for path in (pictures[0], tmp_path / "rgb.png")
    ]
    assert same[0]["predictions"][0]["probability"] == same[1]["predictions"][0]["probability"]
    assert "in colour" in fedrfq("predict", whole, 0, tmp_path / "red.png", expect=2).stderr
