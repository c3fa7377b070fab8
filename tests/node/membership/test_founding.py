"""A federation is founded from its parties' own requests, which nobody else could have made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrfq import experiment
from fedrfq.cli.founding import addresses
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation, Timings
from fedrfq.federation.members import Member, Members, endpoint
from fedrfq.federation.signatures import Ed25519Signer
from fedrfq.files import toml
from fedrfq.learning.round_loop import committee_settings
from fedrfq.node.membership import certificates, founding, identity, joining
from fedrfq.node.membership.founding import NewKeys
from fedrfq.node.membership.request import Request
from fedrfq.node.storage.party_folder import write
from support.command import fedrfq
from support.parties import NOW, agreed, certificate, founded, keys, purpose, request
from support.paths import EXAMPLES

PRIVATE = ("vote.key", "tls.key")
FEDERATION = agreed(keys())
REQUEST = NewKeys.new("hospital").request.text


@pytest.fixture
def party(tmp_path: Path) -> Path:
    founded(tmp_path / "federation")
    return tmp_path / "federation" / "server-1"


# fedrfq committee init


def test_init_writes_a_folder_for_each_party_that_loads_as_itself(tmp_path: Path) -> None:
    options = ("--servers", 4, "--clients", 3, "--port", 9000, "--deadline", 1.5)
    done = fedrfq("committee", "init", tmp_path / "it", *options)
    text = (tmp_path / "it" / "federation.toml").read_bytes()
    federation = Federation.read(text.decode(), "it")
    parties = {f"server-{k}": k for k in range(4)} | {f"client-{k}": ~k for k in range(3)}
    assert federation.roster.run.hex() in done.stdout
    assert {path.name for path in (tmp_path / "it").iterdir()} == {*parties, "federation.toml"}
    for name, number in parties.items():
        found = identity.load(tmp_path / "it" / name)
        folder = tmp_path / "it" / name
        assert (found.party, found.member.name, found.is_server) == (number, name, number >= 0)
        assert (folder / "federation.toml").read_bytes() == text
        assert {(folder / file).stat().st_mode & 0o777 for file in PRIVATE} == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700
    assert [federation.members[k].address for k in range(4)] == [
        f"127.0.0.1:{9000 + k}" for k in range(4)
    ]
    assert federation.timings == Timings(minimum=2, deadline_ms=1500)


def test_what_is_agreed_on_is_what_a_run_of_the_experiment_asks_of_its_committee() -> None:
    file = EXAMPLES / "quickstart.toml"
    aim = founding.purpose(7, 6, file, ["rounds=3"])
    again = experiment.from_table(tomllib.loads(aim.experiment))
    assert (again.clients, again.rounds, again.committee.about()) == (
        6,
        3,
        "7 servers, none faulty, on a calm network",
    )
    assert committee_settings(again, 10).task == aim.task
    assert (aim.task.classes, aim.task.values) == (10, 24)


def test_without_a_file_the_experiment_is_the_quickstarts() -> None:
    file = EXAMPLES / "quickstart.toml"
    given_, default = (
        tomllib.loads(founding.purpose(4, None, path).experiment) for path in (file, None)
    )
    assert {**given_, "name": ""} == {**default, "name": ""}


NOISE = ["--set", "method.name=local", "--set", "public.name=random"]
NOISE += ["--set", "privacy.noise=2.0", "--set", "public.every=3"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--servers", 3], "4 to 1000"),
        (["--servers", 2], "4 to 1000"),
        (["--minimum", 3], "not 3"),
        (["--host", "no host"], "host:port"),
        (["--port", 65533], "host:port"),
        (["--host", "a", "--host", "b"], "once for each of the 4"),
        (["--set", "method.name=fedavg"], "prototypes"),
        (["--set", "method.name=fedavg", "--set", "public.name=random"], "averages"),
        (["--experiment", "nowhere.toml"], "nowhere.toml"),
        ([*NOISE, "--set", "privacy.budget=1"], "below what one upload costs"),
        (["--set", "track=mlflow"], "track = 'mlflow' is for `fedrfq run`"),
    ],
)
def test_init_writes_nothing_of_what_cannot_be(
    tmp_path: Path, options: list[object], why: str
) -> None:
    folder = tmp_path / "it"
    done = fedrfq("committee", "init", folder, "--clients", 2, *options, expect=2)
    assert why in done.stderr
    assert not folder.exists()


@pytest.mark.parametrize(
    ("options", "detector"),
    [
        ([], "adaptive"),
        (["--set", "detector.name=median"], "median"),
        (["--experiment", "named.toml"], "none"),
        (["--experiment", "named.toml", "--detector", "bft"], "bft"),
    ],
)
def test_a_detector_is_chosen_in_the_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], detector: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("named.toml").write_text('detector.name = "none"\n')
    done = fedrfq("committee", "init", "it", "--clients", 2, *options)
    assert f"detector: {detector}" in done.stdout
    assert Federation.read(Path("it/federation.toml").read_text(), "it").detector == detector


def test_who_founds_and_who_joins_is_told_what_noise_will_cost(tmp_path: Path) -> None:
    own = ["--classes", "fracture,healthy", "--shape", "1x28x28"]
    options = [*own, *NOISE, "--set", "rounds=7"]
    said = fedrfq("committee", "init", tmp_path / "it", "--clients", 2, *options).stdout
    cost = "all 7 rounds together: ε = 3.709 at δ = 1e-05 after 3 uploads, per sample"
    assert f"noise: {cost}" in said
    scans = tmp_path / "scans.npz"
    arrays = {"train_x": np.zeros((4, 28, 28), np.uint8), "train_y": np.arange(4) % 2}
    test = {"test_x": arrays["train_x"], "test_y": arrays["train_y"]}
    np.savez(scans, **arrays, **test, classes=["fracture", "healthy"])
    home = tmp_path / "it" / "client-0"
    assert cost in fedrfq("doctor", home, "--data", scans, "--timeout", 0.1, expect=1).stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    made = keys()
    federation = agreed(made)
    (tmp_path / "client-1").mkdir()
    with pytest.raises(UserError, match="client-1 exists"):
        founding.found(tmp_path, federation, made)
    assert [path.name for path in tmp_path.iterdir()] == ["client-1"]
    (tmp_path / "client-1").rmdir()
    (tmp_path / "federation.toml").write_text("other")
    with pytest.raises(UserError, match=r"federation\.toml exists"):
        founding.found(tmp_path, federation, made)
    assert (tmp_path / "federation.toml").read_text() == "other"
    assert not (tmp_path / "server-0").exists()


@pytest.mark.parametrize("name", ["vote.key", "tls.key", "tls.crt", "request.toml"])
def test_keys_are_never_overwritten_nor_written_in_part(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    assert "exists" in fedrfq("keys", "new", tmp_path, "--name", "me", expect=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_file_that_comes_to_be_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="exists"):
        write(tmp_path / "file", b"other")
    assert (tmp_path / "file").read_text() == "mine"


def test_hosts_are_one_for_all_or_one_for_each() -> None:
    assert addresses(["h"], 4, 7400) == ["h:7400", "h:7401", "h:7402", "h:7403"]
    assert addresses(["a", "b", "a", "c"], 4, 7400) == ["a:7400", "b:7400", "a:7401", "c:7400"]
    assert addresses(["::1"], 1, 1) == ["[::1]:1"]
    assert addresses(["h"], 0, 7400) == []


# Requests


def test_parties_make_their_own_keys_and_anyone_founds_the_same_federation(tmp_path: Path) -> None:
    for k in (10, 2, 1, 0):
        fedrfq("keys", "new", tmp_path / f"s{k}", "--name", f"s-{k}", "--address", f"h{k}:7400")
    fedrfq("keys", "new", tmp_path / "c", "--name", "hospital")
    files = [tmp_path / name / "request.toml" for name in ("s10", "s2", "c", "s1", "s0")]
    added = fedrfq("committee", "add", tmp_path / "one", *files[:3])
    assert "requests of 2 servers, 1 client and 0 couriers" in added.stdout
    fedrfq("committee", "add", tmp_path / "one", *files[3:])
    fedrfq("committee", "add", tmp_path / "other", *reversed(files))
    for folder in ("one", "other"):
        fedrfq("committee", "init", tmp_path / folder)
    text = (tmp_path / "one" / "federation.toml").read_bytes()
    assert text == (tmp_path / "other" / "federation.toml").read_bytes()
    assert {path.name for path in (tmp_path / "one").iterdir()} == {"federation.toml", "requests"}
    (tmp_path / "s10" / "federation.toml").write_bytes(text)
    found = identity.load(tmp_path / "s10")
    assert (found.party, found.member.name) == (3, "s-10")
    assert (
        "is founded already"
        in fedrfq("committee", "add", tmp_path / "one", files[0], expect=2).stderr
    )


def test_keys_may_be_made_for_some_and_requested_by_others(tmp_path: Path) -> None:
    NewKeys.new("hospital").write(tmp_path / "hospital")
    founding.add(tmp_path / "it", [tmp_path / "hospital" / "request.toml"])
    federation = founding.init(tmp_path / "it", addresses(["h"], 4, 7400), 1)
    assert [member.name for member in federation.members.values()][4:] == ["client-0", "hospital"]
    assert not (tmp_path / "it" / "hospital").exists()


def test_who_founds_too_early_is_told_who_has_asked_and_makes_nobodys_keys(tmp_path: Path) -> None:
    folder = tmp_path / "it"

    def ask(*keys: NewKeys) -> None:
        for made in keys:
            name = made.request.member.name
            made.write(tmp_path / name)
            founding.add(folder, [tmp_path / name / "request.toml"])

    def refused() -> str:
        said = fedrfq("committee", "init", folder, expect=2).stderr
        assert [path.name for path in folder.iterdir()] == ["requests"]
        return said

    ask(NewKeys.new("ward-a"))
    assert "and none would be in it; so far these have asked: clients ward-a; wait" in refused()
    shutil.rmtree(folder)
    ask(*(NewKeys.new(f"hospital-{k}", f"h:{7400 + k}") for k in range(2)))
    assert "no client has asked to take part yet, only the servers hospital-0, hos" in refused()
    ask(NewKeys.new("ward-b"))
    assert "and 2 would be in it; so far these have asked: servers hospital-0, hosp" in refused()
    ask(*(NewKeys.new(f"hospital-{k}", f"h:{7400 + k}") for k in range(2, 4)))
    said = fedrfq("committee", "init", folder).stdout
    assert "servers: hospital-0, hospital-1, hospital-2, hospital-3\nclients: ward-b\n" in said


def test_a_pause_between_rounds_is_agreed_on(tmp_path: Path) -> None:
    options = ("--servers", 1, "--clients", 1, "--pause", 86400, "--deadline", 90)
    fedrfq("committee", "init", tmp_path / "it", *options)
    found = identity.read_federation(tmp_path / "it" / "federation.toml")
    assert (found.pause_s, found.timings.deadline_ms) == (86_400, 86_490_000)
    said = "\n".join(joining.terms(found))
    assert "waits 90 s for the others\nbetween two rounds clients pause for 1 day, 0:00:00" in said
    # A file without one is as it was before there were pauses.
    assert "pause" not in replace(found, pause_s=0).text
    with pytest.raises(UserError, match="give a round a deadline after the pause"):
        replace(found, pause_s=86_490)


def test_a_request_is_read_back() -> None:
    for made in (NewKeys.new("hospital"), NewKeys.new("s", "h:1")):
        assert Request.read(made.request.text, "here") == made.request
        assert ('role = "server"' in made.request.text) == made.request.is_server


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_request_is_refused(data: st.DataObject) -> None:
    letters = list(REQUEST)
    letters[data.draw(st.integers(0, len(letters) - 1))] = data.draw(
        st.sampled_from('x0"[]=\n-é\x00')
    )
    if (text := "".join(letters)) != REQUEST:
        with pytest.raises(UserError):
            Request.read(text, "here")


def test_nobody_asks_for_anothers_key() -> None:
    mine = NewKeys.new("mine").request
    other = NewKeys.new("other").request
    stolen = replace(mine, key=other.key).signed(Ed25519Signer(bytes(32)))
    for forged in (
        stolen,
        replace(mine, member=other.member),
        replace(mine, signature=bytes(64)),
        replace(mine, signature=b""),
    ):
        with pytest.raises(UserError, match="not signed by its own key"):
            Request.read(forged.text, "here")
    moved = NewKeys.new("s", "here:1").request
    with pytest.raises(UserError, match="not signed"):
        replace(moved, member=replace(moved.member, address="elsewhere:1")).check()


def test_a_request_is_no_message_of_the_protocol() -> None:
    signer = Ed25519Signer(bytes(32))
    made = certificate("it")
    bare = replace(request("it", made, seed=bytes(32)), signature=b"")
    said = bare.text.removesuffix('signature = ""\n').encode()
    with pytest.raises(UserError, match="not signed"):
        replace(bare, signature=signer(said)).check()
    replace(bare, signature=signer(b"fedrfq request\n" + said)).check()


def test_only_sound_requests_and_all_that_the_experiment_counts_on_are_founded_on() -> None:
    asked = [each.request for each in keys(4, 1)]
    with pytest.raises(UserError, match="2 clients, and 1 ask"):
        founding.federation(purpose(2), asked, Timings())
    old = request("old", certificate("old", start=NOW - timedelta(days=20)))
    with pytest.raises(UserError, match="expired"):
        founding.federation(purpose(2), [*asked, old], Timings())


@pytest.mark.parametrize("name", ["", "Upper", "../up", "a b", "é", "x" * 64])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="name must"):
        NewKeys.new(name)


@pytest.mark.parametrize(
    "key", [bytes(32), bytes([1, *bytes(31)]), bytes([0xEC, *[0xFF] * 30, 0x7F]), b"short"]
)
def test_weak_keys_are_refused(key: bytes) -> None:
    weak = replace(NewKeys.new("hospital").request, key=key)
    with pytest.raises(UserError, match=r"hospital is weak.*keys new"):
        Request.read(weak.text, "here")
    with pytest.raises(UserError, match="is weak"):
        founding.federation(purpose(2), [*(each.request for each in keys(4, 1)), weak], Timings())


def test_requests_that_have_anything_in_common_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without this, a certificate of another name would be refused before.
    monkeypatch.setattr(certificates, "check", lambda der, who: None)
    shared = certificate("one")
    one = request("one", shared)
    twins = {
        "same name": NewKeys.new("one").request,
        "same certificate": request("two", shared, seed=bytes(32)),
        "same key": request("two", certificate("two")),
    }
    for name, asked in {"one": one, **twins}.items():
        (tmp_path / name).write_text(asked.text)
    for why in twins:
        with pytest.raises(UserError, match=why):
            founding.add(tmp_path / "it", [tmp_path / "one", tmp_path / why])
    assert not (tmp_path / "it").exists()
    founding.add(tmp_path / "it", [tmp_path / "one"])
    for why in twins:
        with pytest.raises(UserError, match=why):
            founding.add(tmp_path / "it", [tmp_path / why])


def test_hostile_request_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"a = 1\n" * 100_000)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    reasons = {
        "long": "600,000 bytes",
        "bytes": "not text",
        "folder": "it is a folder",
        "pipe": "it is a pipe",
        "missing": "No such",
    }
    for name, why in reasons.items():
        with pytest.raises(UserError, match=f"{name}.*{why}"):
            founding.add(tmp_path / "it", [tmp_path / name])


# Certificates


REFUSED = {
    "neither P-256": lambda: certificate("it", ec.generate_private_key(ec.SECP384R1())),
    "neither P-256 nor": lambda: certificate("it", rsa.generate_private_key(65537, 2048)),
    "not signed by its own key": lambda: certificate(
        "it", issuer=ec.generate_private_key(ec.SECP256R1())
    ),
    "could sign others": lambda: certificate("it", ca=True),
    "of another name": lambda: certificate("other"),
    "cannot be read": lambda: certificate("it", ca=None),
    "has expired": lambda: certificate("it", start=NOW - timedelta(days=20)),
    "valid from": lambda: certificate("it", start=NOW + timedelta(days=1)),
    "cannot be pinned": lambda: b"no certificate",
    "cannot be pinned, it cannot be read": lambda: certificate("it") + b"more",
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_certificate_that_cannot_be_pinned_is_refused(why: str) -> None:
    with pytest.raises(UserError, match=why):
        Request.read(request("it", REFUSED[why]()).text, "here")


def test_both_kinds_of_keys_are_taken() -> None:
    certificates.check(certificates.make("it")[1], "it")
    certificates.check(certificate("it", ed25519.Ed25519PrivateKey.generate()), "it")


def test_a_certificate_is_valid_for_two_years() -> None:
    start, end = certificates.validity(certificates.make("it", now=NOW)[1], "it")
    assert start < NOW
    assert end == NOW.replace(microsecond=0) + timedelta(days=730)


# federation.toml


def test_a_federation_is_read_back() -> None:
    federation = agreed(keys())
    again = Federation.read(federation.text, "here")
    assert again == federation
    assert again.roster.run == federation.roster.run
    assert {member.name: party for party, member in again.members.items()}["client-1"] == ~1
    assert all(
        again.party_by_certificate[member.certificate] == party
        for party, member in again.members.items()
    )


def test_all_of_a_federation_is_in_its_runs_id() -> None:
    made = keys()
    federation = agreed(made)
    assert federation.network is not None
    follower = replace(federation, network=replace(federation.network, follows="ab" * 32))
    renewed = replace(made[0].request.member, certificate=certificate("server-0"))
    other = replace(
        federation,
        network=replace(federation.network, members=(renewed, *federation.network.members[1:])),
    )
    assert len({each.roster.run for each in (federation, follower, other)}) == 3
    assert Federation.read(follower.text, "here").network == follower.network


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_federation_is_another_run_or_an_error(data: st.DataObject) -> None:
    letters = list(FEDERATION.text)
    letters[data.draw(st.integers(0, len(letters) - 1))] = data.draw(
        st.sampled_from('x0"[]=\n-é\x00')
    )
    if (text := "".join(letters)) != FEDERATION.text:
        with suppress(UserError):
            assert Federation.read(text, "here").roster.run != FEDERATION.roster.run


def test_a_federation_that_could_not_be_is_refused() -> None:
    text = FEDERATION.text
    network = FEDERATION.network
    assert network is not None
    first, second, *rest = network.members
    server = f'name = "{first.name}"\naddress = "{first.address}"\n'
    client = f'name = "{rest[-1].name}"\n'
    for old, new, why in (
        (second.name, first.name, "same name"),
        (second.address, first.address, "same address"),
        (server, f'name = "{first.name}"\n', "has no address"),
        (client, client + 'address = "h:1"\n', "is no server"),
        (first.address, "127.0.0.1", "host:port"),
        (first.name, "../up", "name"),
        ('follows = ""', 'follows = "ab"', "follows"),
        ("rounds = 2", "rounds = 3", "digest"),
        ("minimum = 1", "minimum = 3", "not 3"),
        ("[network]", "[other]", "restore"),
    ):
        assert text.count(old) >= 1
        with pytest.raises(UserError, match=why):
            Federation.read(text.replace(old, new, 1), "here")
    for changed, why in (
        ((first, replace(second, certificate=first.certificate), *rest), "same certificate"),
        ((first, second, *rest[:-1]), "members but"),
    ):
        with pytest.raises(UserError, match=why):
            replace(FEDERATION, network=replace(network, members=changed))
    with pytest.raises(UserError, match="characters"):
        Members("", "a = 1\n" * 20_000, ())
    with pytest.raises(UserError, match="bytes"):
        Member("it", "", bytes(5000))


WRONG = [
    "",
    "h",
    "h:",
    ":1",
    "h:0",
    "h:65536",
    "h:01",
    "h:1 ",
    "h:¹",
    "h h:1",
    "-h:1",
    "h..h:1",
    "h/p:1",
    "u@h:1",
    "a" * 64 + ":1",
]
WRONG += ["1.2.3:1", "1.2.3.400:1", "::1:1", "[::g]:1", "[]:1", "[fe80::1%eth0]:1"]


@pytest.mark.parametrize("address", WRONG)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="host:port"):
        endpoint(address)
    # No address at all is that of a client.
    if address:
        with pytest.raises(UserError, match="host:port"):
            NewKeys.new("it", address)


def test_an_address_is_a_host_and_a_port() -> None:
    assert endpoint("Committee.example.org:7400") == ("committee.example.org", 7400)
    assert endpoint("10.0.0.1:65535") == ("10.0.0.1", 65535)
    assert endpoint("[::1]:1") == ("::1", 1)


# Loading


def test_private_keys_that_others_can_read_are_refused(party: Path) -> None:
    for name in PRIVATE:
        for mode in (0o640, 0o604, 0o620):
            (party / name).chmod(mode)
            with pytest.raises(UserError, match=rf"{name} can be read by others.*chmod 600"):
                identity.load(party)
        (party / name).chmod(0o400)
    identity.load(party)


def test_a_folder_of_no_party_is_refused(party: Path) -> None:
    (party / "vote.key").write_text(bytes(32).hex())
    with pytest.raises(UserError, match="none of federation"):
        identity.load(party)


def test_another_partys_certificate_is_refused(party: Path) -> None:
    (party / "tls.crt").write_bytes((party.parent / "server-2" / "tls.crt").read_bytes())
    with pytest.raises(UserError, match="not the certificate"):
        identity.load(party)


@pytest.mark.parametrize("text", ["", "secret", "ab" * 31, "ab" * 33, "zz" * 32])
def test_a_damaged_key_is_refused_and_not_shown(party: Path, text: str) -> None:
    (party / "vote.key").write_text(text)
    with pytest.raises(UserError, match="restore it") as refused:
        identity.load(party)
    assert not text or text not in str(refused.value)


def test_a_party_with_an_expired_certificate_starts_and_one_with_a_wrong_clock_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keys()
    federation = agreed(made)
    past = certificate("server-0", start=NOW - timedelta(days=20))
    assert federation.network is not None
    old = replace(federation.network.members[0], certificate=past)
    aged = replace(
        federation,
        network=replace(federation.network, members=(old, *federation.network.members[1:])),
    )
    founding.found(tmp_path, aged, made)
    (tmp_path / "server-0" / "tls.crt").write_text(certificates.pem(past))
    # It renews the certificate by itself.
    identity.load(tmp_path / "server-0")
    later = NOW + timedelta(days=1)
    monkeypatch.setattr(certificates, "validity", lambda der, who: (later, later))
    with pytest.raises(UserError, match="set the clock"):
        identity.load(tmp_path / "server-0")


@pytest.mark.parametrize("name", ["federation.toml", "vote.key", "tls.key", "tls.crt"])
def test_a_folder_with_something_missing_is_refused(party: Path, name: str) -> None:
    (party / name).unlink()
    with pytest.raises(UserError, match=name):
        identity.load(party)


def test_a_simulated_federation_has_no_parties(party: Path) -> None:
    (party / "federation.toml").write_text(replace(FEDERATION, network=None).text)
    with pytest.raises(UserError, match="simulated"):
        identity.load(party)


def test_none_of_it_needs_torch() -> None:
    late = "{'torch', 'cryptography', 'nacl'}"
    modules = "fedrfq.cli.main, fedrfq.node.ops.doctor, fedrfq.node.membership.founding"
    script = f"import sys, {modules}; assert not {late} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_an_experiments_text_is_bounded_and_as_this_program_writes_it() -> None:
    network = FEDERATION.network
    assert network is not None
    assert toml.dump(toml.strict(network.experiment)) == network.experiment
    with pytest.raises(ValueError, match="line"):
        replace(FEDERATION, network=replace(network, experiment="[[[["))
