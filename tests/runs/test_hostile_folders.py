"""Commands on run directories with pipes, devices, links, folders and terabytes in them."""

import json
import shutil

import pytest

from fedrfq.files import tensors
from support.command import fedrfq
from support.unusual import put_instead


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


FILES = [
    "experiment.toml",
    "environment.json",
    "rounds.jsonl",
    "checkpoints/round-000008.safetensors",
]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "sparse"])
def test_every_command_refuses_an_unusual_file_on_one_line(copy, kind, tmp_path):
    (copy / "result.json").unlink()
    for name in FILES:
        shutil.move(copy / name, tmp_path / "before")
        put_instead(copy / name, kind)
        for arguments in (["show", copy], ["resume", copy], ["export", copy, "0"]):
            if arguments[0] == "show" and "checkpoint" in name:
                continue
            if arguments[0] == "export" and name == "rounds.jsonl":
                continue
            done = fedrfq(*arguments, expect=2)
            assert done.stderr.splitlines()[-1].startswith("error: ")
        put_instead(copy / name, "sparse")
        shutil.move(tmp_path / "before", copy / name)


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "sparse"])
def test_a_report_notes_the_figures_that_unusual_files_would_have_made(copy, kind):
    for name in ("clients.csv", "partition.csv", "prototypes.safetensors"):
        put_instead(copy / name, kind)
    fedrfq("report", copy)
    page = (copy / "report.html").read_text()
    assert "so the charts of clients are missing" in page


def test_nothing_is_written_or_removed_through_a_link(copy, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "round-000001.safetensors").write_bytes(b"mine")
    (copy / "report").symlink_to(outside)
    assert "report is a link" in fedrfq("report", copy, expect=2).stderr
    (copy / "accuracy.png").unlink(missing_ok=True)
    (copy / "accuracy.png").symlink_to(outside / "picture")
    fedrfq("show", copy)
    shutil.move(copy / "clients.csv", outside / "clients.csv")
    (copy / "clients.csv").symlink_to(outside / "clients.csv")
    assert "clients.csv" in fedrfq("resume", copy, expect=2).stderr
    shutil.move(copy / "checkpoints", tmp_path / "checkpoints")
    (copy / "checkpoints").symlink_to(outside)
    for arguments in (["resume", copy], ["export", copy, "0"]):
        assert "checkpoints is a link" in fedrfq(*arguments, expect=2).stderr
    assert sorted(path.name for path in outside.iterdir()) == [
        "clients.csv",
        "round-000001.safetensors",
    ]


def test_a_run_alone_does_not_say_which_others_are_written_to(copy, tmp_path):
    """All runs of a stack are resumed together, so all of them have to say so."""
    victim = shutil.copytree(copy, tmp_path / "victim")
    before = (victim / "rounds.jsonl").read_bytes()
    for path, stack in ((copy, [".", "../victim"]), (victim, ["."])):
        facts = json.loads((path / "environment.json").read_text())
        (path / "environment.json").write_text(json.dumps({**facts, "stack": stack}))
    assert "which says otherwise" in fedrfq("resume", copy, expect=2).stderr
    assert (victim / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", ["cohort0/fc1.weight", "globals/values"])
def test_a_checkpoint_of_other_models_is_refused(copy, name):
    path = copy / "checkpoints/round-000008.safetensors"
    named, metadata = tensors.load(path)
    tensors.save(path, {**named, name: named[name][:, :1]}, metadata)
    for arguments in (["resume", copy], ["export", copy, "0"]):
        done = fedrfq(*arguments, expect=2)
        assert "not of the experiment's models and data" in done.stderr


def test_data_that_cannot_be_are_refused(copy):
    facts = json.loads((copy / "environment.json").read_text())
    for key, value in (("shape", [1, 10**30, 28]), ("mean", [None]), ("classes", [1, 2])):
        data = {**facts["data"], key: value}
        (copy / "environment.json").write_text(json.dumps({**facts, "data": data}))
        assert "does not describe the data" in fedrfq("export", copy, "0", expect=2).stderr
