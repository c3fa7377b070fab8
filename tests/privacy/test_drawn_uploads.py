"""An upload is on the disk before anybody sees it, and is never drawn again."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrfq.errors import UserError
from fedrfq.files import atomic
from fedrfq.privacy.claim import affordable, check_budget, claim
from fedrfq.privacy.drawn_uploads import DrawnUpload, DrawnUploads, UploadKey
from fedrfq.privacy.settings import Privacy
from fedrfq.privacy.trained_rounds import TrainedRounds

KEY = UploadKey("ab", 1, 3)
SAMPLE = Privacy(noise=2.0)


def upload(content: bytes = b"noisy\n\x00values", noise: float = 2.0) -> DrawnUpload:
    return DrawnUpload(content, noise, "sample", 4)


def never() -> DrawnUpload:
    raise AssertionError("drawn again")


def test_it_is_drawn_once_and_found_by_the_next_process(tmp_path: Path) -> None:
    folder = tmp_path / "privacy"
    first = DrawnUploads(folder)
    assert first.once(KEY, upload) == upload()
    assert first.once(KEY, never) == upload()
    again = DrawnUploads(folder)
    assert again.once(KEY, never) == upload()
    assert again.of(3) == [upload()]
    assert again.of(4) == []


def test_what_another_process_drew_meanwhile_is_found(tmp_path: Path) -> None:
    one = DrawnUploads(tmp_path / "privacy")
    other = DrawnUploads(tmp_path / "privacy")
    one.once(KEY, upload)
    assert other.of(3) == [upload()]
    assert other.once(KEY, never) == upload()


def test_it_is_on_the_disk_when_it_is_returned(tmp_path: Path) -> None:
    folder = tmp_path / "privacy"
    drawn = DrawnUploads(folder)
    drawn.once(KEY, upload)
    assert upload().content in (folder / KEY.file).read_bytes()


def test_a_draw_that_could_not_be_written_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spent before sent: without room on the disk nothing is returned, and so nothing sent."""

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    drawn = DrawnUploads(tmp_path / "privacy")
    monkeypatch.setattr(atomic, "sync_folder", full)
    with pytest.raises(UserError, match="free some space"):
        drawn.once(KEY, upload)
    # The file may be there. Then it is what counts, and is not drawn again.
    monkeypatch.undo()
    assert drawn.once(KEY, never) == upload()


def test_names_are_flushed_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic, "sync_folder", synced.append)
    DrawnUploads(tmp_path / "privacy").once(KEY, upload)
    assert synced == [tmp_path / "privacy", tmp_path]
    TrainedRounds(tmp_path / "other").begin([0])
    assert synced[2:] == [tmp_path / "other", tmp_path]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: b"",
        lambda content: b"{}\n",
        lambda content: b"[" * 100_000,
        lambda content: content.replace(b'"noise": 2.0', b'"noise": -2.0'),
        lambda content: content.replace(b'"noise": 2.0', b'"noise": null'),
        lambda content: content.replace(b'"round": 1', b'"round": 2'),
    ],
)
def test_a_damaged_file_is_no_reason_to_draw_again(tmp_path: Path, damage: object) -> None:
    folder = tmp_path / "privacy"
    DrawnUploads(folder).once(KEY, upload)
    path = folder / KEY.file
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(UserError, match="restore the file"):
        DrawnUploads(folder)


def test_claims_compose_all_uploads() -> None:
    one = claim(SAMPLE, [upload()])
    three = claim(SAMPLE, [upload(), upload(), upload(noise=4.0)])
    assert one.epsilon is not None
    assert three.epsilon is not None
    assert 0 < one.epsilon < three.epsilon
    assert (three.uploads, three.unit, three.delta, three.noise) == (3, "sample", 1e-5, 2.0)
    assert str(one) == "ε = 1.993 at δ = 1e-05, for any one sample"
    assert claim(SAMPLE, []).epsilon == 0


def test_there_is_no_epsilon_where_more_leaves_the_client() -> None:
    made = claim(SAMPLE, [upload()], "method 'fedproto' uploads prototypes")
    assert made.epsilon is None
    assert str(made) == "no ε: method 'fedproto' uploads prototypes"


def test_uploads_that_protect_samples_do_not_protect_a_client() -> None:
    client = Privacy(noise=2.0, unit="client", samples=10, budget=100.0)
    assert claim(client, [upload()]).epsilon is None
    assert not affordable(client, [upload()])
    assert claim(SAMPLE, [DrawnUpload(b"", 2.0, "client", 0)]).epsilon is not None


def test_a_budget_stops_before_it_is_exceeded() -> None:
    privacy = Privacy(noise=2.0, budget=3.0)
    drawn: list[DrawnUpload] = []
    while affordable(privacy, drawn):
        drawn.append(upload())
    assert len(drawn) == 2
    spent = claim(privacy, drawn).epsilon
    assert spent is not None
    assert spent <= 3.0
    over = claim(privacy, [*drawn, upload()]).epsilon
    assert over is not None
    assert over > 3.0


def test_a_budget_below_one_upload_is_said_at_the_start() -> None:
    with pytest.raises(UserError, match=r"budget = 1 is below what one upload costs, ε = 1.993"):
        check_budget(Privacy(noise=2.0, budget=1.0))
    check_budget(Privacy(noise=2.0, budget=2.0))
