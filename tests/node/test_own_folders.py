"""Four clients as processes, each on a folder of its own, under one data contract."""

from __future__ import annotations

import re
import time
from base64 import b64decode
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrfq.cli.data_page import data_page
from fedrfq.errors import UserError
from fedrfq.node.client_learning import participant, place
from fedrfq.node.data_preview import ClassPreview, DataPreview
from fedrfq.node.membership import founding, identity
from fedrfq.node.membership.contract_choice import ContractChoice
from fedrfq.node.ops.child_processes import Child
from fedrfq.node.ops.local_cluster import Cluster, free_ports
from support.command import fedrfq
from support.small import CPU

LIMIT_S = 120.0
NAMES = ("bag", "boot", "coat")
SETS = ["rounds=1", "model.name=mlp", "seed=3"]


def pictures(folder: Path, names: dict[str, str], size: int = 8, count: int = 4) -> str:
    """Draw noise around the brightness of each folder's class, which `names` has."""
    random = np.random.default_rng(len(names))
    for name, of in names.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            values = 40 + 70 * NAMES.index(of) + random.integers(0, 40, (size, size))
            Image.fromarray(values.astype(np.uint8)).save(folder / name / f"{number}.png")
    return str(folder)


def deep_pictures(folder: Path, *names: str) -> str:
    """Draw pictures as `pictures` does, in TIFF and PNG of 12 bits."""
    pictures(folder, same(*names))
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        values = np.asarray(Image.open(path)).astype(np.uint16) * 16
        path.unlink()
        Image.fromarray(values).save(path.with_suffix((".png", ".tif")[number % 2]))
    return str(folder)


def float_arrays(path: Path, *names: str) -> str:
    """Write arrays of floats from 0 to 4095, with the names of their labels."""
    random = np.random.default_rng(7)
    labels = np.repeat(np.arange(len(names)), 4)
    bright = np.array([40 + 70 * NAMES.index(name) for name in names])[labels] * 16.0
    images = bright[:, None, None] + random.random((len(labels), 8, 8)) * 640
    parts = {"train_x": images, "test_x": images, "train_y": labels, "test_y": labels}
    np.savez(path, **parts, classes=names)
    return str(path)


def same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def wait(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.02)


def said_by(child: Child) -> str:
    """Return the last line of a process that refused to go on."""
    wait(lambda: child.code is not None)
    assert child.code == 2
    return " ".join(child.output.read_text().split())


def test_four_clients_of_which_one_is_misnamed_one_lacks_a_class_and_one_has_another_shape(
    tmp_path: Path,
) -> None:
    # The first has 12 bits a pixel, the third floats; the contract's window is for both.
    own = [
        deep_pictures(tmp_path / "a", *NAMES),
        pictures(tmp_path / "b", {"zbag": "bag", "boot": "boot", "coat": "coat"}),
        float_arrays(tmp_path / "c.npz", "boot", "coat"),
        pictures(tmp_path / "d", same(*NAMES), size=12),
    ]
    # The contract resizes pictures, and does not turn colours into grey.
    grey = {path: path.read_bytes() for path in sorted((tmp_path / "d").rglob("*.png"))}
    for path in grey:
        black = Image.new("L", (12, 12))
        Image.merge("RGB", (Image.open(path), black, black)).save(path)
    folder = tmp_path / "f"
    choice = ContractChoice.of(",".join(NAMES), "", shape="1x8x8", window="0:4095", resize=True)
    # The round needs all four, so it is decided only if each of them is accepted.
    founding.init(
        folder,
        [f"127.0.0.1:{free_ports(1)[0]}"],
        4,
        {"minimum": 4, "deadline_ms": 120_000},
        sets=SETS,
        choice=choice,
    )
    assert str(tmp_path) not in (folder / "federation.toml").read_text()
    cluster = Cluster(folder, more={~k: ["--data", path] for k, path in enumerate(own)})
    misnamed = cluster.children[~1]
    coloured = cluster.children[~3]
    try:
        cluster.start()
        said = said_by(misnamed)
        assert re.search(r"class 'zbag' is none of .* \(did you mean bag\?\)", said)
        (tmp_path / "b" / "zbag").rename(tmp_path / "b" / "bag")
        misnamed.start()
        said = said_by(coloured)
        assert "in grey of 8×8 pixels, found 12 colour (bag/0.png); convert those" in said
        assert "committee init … --shape 1x8x8 --recolour`" in said
        for path, content in grey.items():
            path.write_bytes(content)
        coloured.start()
        wait(cluster.finished)
    finally:
        cluster.stop()
    lacking = cluster.children[~2].output.read_text()
    assert re.search("no samples of some classes.*bag", lacking)
    assert "1 of 1" in fedrfq("verify", folder / "server-0", "--recompute").stdout
    assert all(cluster.last_round(~k)["verdict"] == "kept" for k in range(4))
    # What the contract converts for training, it converts for prediction.
    predicted = fedrfq("predict", folder / "client-3", 3, tmp_path / "d" / "boot" / "0.png")
    assert any(name in predicted.stdout for name in NAMES)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Found a federation whose contract resizes nothing, of one client."""
    folder = tmp_path_factory.mktemp("exact") / "f"
    address = f"127.0.0.1:{free_ports(1)[0]}"
    choice = ContractChoice.of(",".join(NAMES), "", shape="1x8x8")
    founding.init(folder, [address], 1, sets=SETS, choice=choice)
    return folder / "client-0"


def test_pictures_of_another_size_are_refused_unless_the_contract_resizes_them(
    tmp_path: Path, exact: Path
) -> None:
    large = pictures(tmp_path / "own", same("bag"), size=12)
    said = fedrfq("client", exact, "--data", large, expect=2).stderr
    assert "found 4 of 12×12 (bag/0.png) pixels" in " ".join(said.split())


def test_doctor_writes_a_page_with_a_picture_of_each_class_for_its_owner_alone(
    tmp_path: Path, exact: Path
) -> None:
    own = pictures(tmp_path / "own", same("bag", "coat"), count=5)
    page = tmp_path / "data.html"
    fedrfq("doctor", exact, "--data", own, "--timeout", 0.1, "--page", page, expect=1)
    text = page.read_text()
    assert re.findall("<tr><td>([a-z]+)<td>([0-9]+)<td>([0-9]+)<td>", text) == [
        ("bag", "4", "1"),
        ("boot", "0", "0"),
        ("coat", "4", "1"),
    ]
    found = [b64decode(part) for part in re.findall('base64,([^"]+)"', text)]
    means = [np.asarray(Image.open(BytesIO(png))).mean() for png in found]
    # A bag is dark, a coat is bright.
    assert [round(mean / 70) for mean in means] == [1, 3]
    assert page.stat().st_mode & 0o777 == 0o600
    assert "default-src 'none'" in text


def test_a_page_is_only_text_whatever_a_class_is_called() -> None:
    colour = np.zeros((3, 2, 2), np.uint8)
    page = data_page(DataPreview((ClassPreview("<script>", 1, 1, colour),), ("a & b",)))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &amp; b" in page


@pytest.mark.parametrize("kind", ["pictures", "floats"])
def test_more_than_8_bits_are_refused_with_the_line_that_would_fix_it(
    tmp_path: Path, exact: Path, kind: str
) -> None:
    own = deep_pictures(tmp_path / "own", *NAMES)
    if kind == "floats":
        own = float_arrays(tmp_path / "own.npz", *NAMES)
    said = " ".join(fedrfq("client", exact, "--data", own, expect=2).stderr.split())
    assert "found the federation with `fedrfq committee init … --window 0:4095`" in said


def test_a_client_is_told_what_share_of_its_pixels_the_window_cuts_off(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    choice = ContractChoice.of(",".join(NAMES), "", shape="1x8x8", window="0:1023")
    founding.init(folder, [f"127.0.0.1:{free_ports(1)[0]}"], 1, sets=SETS, choice=choice)
    bright = deep_pictures(tmp_path / "bright", *NAMES)
    # The window is not for pictures of 8 bits.
    pictures(tmp_path / "bright", {"8 bits": "bag"})
    for path in (tmp_path / "bright" / "8 bits").iterdir():
        path.rename(tmp_path / "bright" / "bag" / f"8-{path.name}")
    (tmp_path / "bright" / "8 bits").rmdir()
    deep = [
        np.asarray(Image.open(path)) for path in (tmp_path / "bright").rglob("*") if path.is_file()
    ]
    values = np.stack([image for image in deep if image.dtype == np.uint16])
    share = f"{100 * (values > 1023).mean():.1f} %"

    def doctor(data: object) -> str:
        page = tmp_path / "data.html"
        page.unlink(missing_ok=True)
        words = (folder / "client-0", "--data", data, "--timeout", 0.1, "--page", page)
        said = fedrfq("doctor", *words, expect=1).stdout
        return " ".join(said.replace("│", " ").split()) + page.read_text()

    said = doctor(bright)
    assert f"window warning {share} of the pixels lie beyond 0:1023 (they run from" in said
    assert f"<p>{share} of the pixels lie beyond" in said
    dark = np.full((6, 8, 8), 1000.0)
    dark[0, 0, :6] = 1024
    dark[0, 0, 6:] = -1
    labels = np.repeat(np.arange(3), 2)
    parts = {"train_x": dark, "test_x": dark, "train_y": labels, "test_y": labels}
    np.savez(tmp_path / "dark.npz", **parts, classes=NAMES)
    assert "window ok 2.1 % of the pixels lie beyond" in doctor(tmp_path / "dark.npz")
    assert "lie beyond" not in doctor(pictures(tmp_path / "eight", same(*NAMES)))


def test_doctor_shows_what_a_client_has_and_what_it_would_send(tmp_path: Path, exact: Path) -> None:
    own = pictures(tmp_path / "own", same("bag", "coat"), count=5)
    said = fedrfq("doctor", exact, "--data", own, "--timeout", 0.1, expect=1).stdout
    assert "3 classes (bag, boot, coat), images 1x8x8" in " ".join(said.split())
    assert "8 training and 2 test samples of 2 of 3 classes; none of boot" in (
        " ".join(said.replace("│", " ").split())
    )
    rows = [line.replace("│", " ").split() for line in said.splitlines()]
    counts = [row for row in rows if len(row) == 3 and row[0] in NAMES]
    assert counts == [["bag", "4", "1"], ["boot", "0", "0"], ["coat", "4", "1"]]
    # Without a terminal there are no colours but shades: a bag is dark, a coat is bright.
    shades = [line for line in said.splitlines() if line.strip() and set(line) <= set(" ░▒▓█")]
    assert any("█" in line and "░" in line for line in shades)
    # A header of 18 bytes, and for each class 6 more and 3 for each value.
    experiment = place(identity.load(exact))[0]
    size = 18 + 2 * (6 + 3 * experiment.prototype_size())
    assert f"{size:,} bytes" in said
    assert "no picture, no test sample and no model leaves this machine" in said
    wrong = pictures(tmp_path / "wrong", {"boots": "boot"})
    said = fedrfq("doctor", exact, "--data", wrong, "--timeout", 0.1, expect=1).stdout
    assert "did you mean boot?" in " ".join(said.replace("│", " ").split())
    assert "would upload" not in said


def test_clients_bring_their_own_data(exact: Path) -> None:
    own = identity.load(exact)
    with pytest.raises(UserError, match="clients bring samples of their own; give the path"):
        participant(own, "mnist5k", CPU)
    with pytest.raises(UserError, match="each client of a federation brings its own samples"):
        participant(own, "contract", CPU)


def test_a_local_cluster_deals_known_data_only(tmp_path: Path) -> None:
    own = pictures(tmp_path / "own", same(*NAMES))
    (tmp_path / "study.toml").write_text(f'[data]\nname = "{own}"\n')
    options = ["--experiment", tmp_path / "study.toml"]
    said = fedrfq("local-cluster", tmp_path / "f", *options, expect=2).stderr
    assert "committee init" in said
    assert not (tmp_path / "f").exists()


def test_what_a_founder_may_say(tmp_path: Path) -> None:
    example = pictures(tmp_path / "secret-ward", same(*NAMES))
    large = pictures(tmp_path / "secret-other-ward", same(*NAMES), size=14)
    (tmp_path / "names.txt").write_text("coat\nbag\n\nboot\n")

    def init(name: str, *options: object) -> str:
        settings = [part for each in SETS for part in ("--set", each)]
        fedrfq("committee", "init", tmp_path / name, "--clients", 1, *settings, *options)
        return (tmp_path / name / "federation.toml").read_text()

    nowhere = ("--like", tmp_path / "no-ward")
    said = fedrfq("committee", "init", tmp_path / "no", *nowhere, expect=2).stderr
    assert "expected the path of an example of clients' data, found nothing at" in said
    assert "mnist5k" not in said
    like = init("like", "--like", example, "--window", "0:4095")
    assert 'classes = ["bag", "boot", "coat"]\nshape = "1x8x8"\nwindow = "0:4095"' in like
    assert "\nmean = 0.5\n" not in like
    # With noise, nothing that was measured of samples is published.
    map_ = ["public.name=random", "public.first=8", "public.second=4"]
    noisy = [part for each in (*map_, "privacy.noise=2.0") for part in ("--set", each)]
    assert "\nmean = 0.5\nstd = 0.25\n" in init("noisy", "--like", large, *noisy)
    assert "secret" not in like
    assert str(tmp_path) not in like
    # The path of an experiment's own data is an example, too.
    by_path = init("path", "--set", f"data.name={example}")
    assert 'name = \\"contract\\"' in by_path
    assert "secret" not in by_path
    # What `init` proposes for an example are options of its own.
    deep = deep_pictures(tmp_path / "deep", *NAMES)
    words = ("committee", "init", tmp_path / "deep-f", "--clients", 1, "--like", deep)
    said = " ".join(fedrfq(*words, expect=2).stderr.split())
    assert said.endswith("or give --window 0:4095")
    assert 'window = "0:4095"' in init("deep-f", "--like", deep, "--window", "0:4095")
    listed = init("listed", "--classes", tmp_path / "names.txt", "--shape", "3x8x8", "--recolour")
    assert 'classes = ["coat", "bag", "boot"]\nshape = "3x8x8"' in listed
    assert "recolour = true" in listed
    assert "[contract]" not in init("known")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--classes", "bag,boot"], "expected a shape, found none"),
        (["--shape", "1x8x8"], "expected the names of the classes, found none"),
        (["--classes", "bag", "--shape", "1x8x8"], "expected names separated by commas"),
        (["--classes", "bag,bag", "--shape", "1x8x8"], "'bag' twice"),
        (["--classes", "a,b", "--shape", "1x8x8", "--set", "model.name=cnn"], "at least 16×16"),
        (["--classes", "a,b", "--shape", "1x8x8", "--set", "public.name=random"], "14"),
    ],
)
def test_a_contract_that_could_not_work_is_not_founded(
    tmp_path: Path, options: list[str], reason: str
) -> None:
    init = ["committee", "init", tmp_path / "f", "--set", "model.name=mlp", *options]
    said = fedrfq(*init, expect=2).stderr
    assert reason in " ".join(said.split())
    assert not (tmp_path / "f").exists()
