"""The directory of a run, or the folder of a party on a network, round by round, with nothing in it taken on trust."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from fedrfq.audit.bodies import recomputed
from fedrfq.audit.location import Misplaced
from fedrfq.audit.log import Audited, Auditor, audited
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Evidence, Message
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.federation_file import Federation, experiment_digest
from fedrfq.federation.reconfiguration import reconfigurable
from fedrfq.federation.round_log import unpack
from fedrfq.files import hash_chain, toml
from fedrfq.files.hash_chain import BrokenChain, Entry

FEDERATION = "federation.toml"
LOG = "audit.log"
BODIES = "bodies.bin"
EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"
RESULT = "result.json"
_LONGEST = (
    1 << 27
)  # bytes of a file that is read as a whole: a federation of the most clients has fewer
_CHUNK = 1 << 20


class Failed(Exception):
    """What does not hold: the file, the byte from which on, the round, and why."""

    def __init__(self, file: str, offset: int, round_: int, why: str) -> None:
        super().__init__(f"{file}, byte {offset}, round {round_}: {why}")
        self.file = file
        self.offset = offset
        self.round = round_
        self.why = why


class Audit:
    """`recompute`: with the bodies, too. `heritage` is what the run started from, where it follows another."""

    def __init__(
        self, path: Path, recompute: bool = False, heritage: Outcome | None = None
    ) -> None:
        self.path = path
        self.recompute = recompute
        self.heritage = heritage
        self.federation = Federation.read(self._text(FEDERATION), str(path / FEDERATION))
        self.network = self.federation.network
        self.experiment = self._experiment()
        self.rules = Rules(self.federation.roster)
        self.auditor = Auditor(self.federation, self.rules, partial=self.network is not None)
        if self.network is None:
            self.application = PrototypeApplication(self.federation.task)
        else:
            self.application = reconfigurable(self.federation, heritage)

    def expected(self) -> int:
        """Rounds that the run has when it has ended."""
        rounds = self.experiment.get("rounds")
        if isinstance(rounds, int):
            return rounds
        return 0

    def rounds(self) -> Iterator[Audited]:
        """Each round once it was found to hold; Failed at the first that does not."""
        if not self._is_the_experiment():
            raise Failed(EXPERIMENT, 0, 0, f"it is not the experiment that {FEDERATION} names")
        previous = self.rules.run
        before = self._start()
        done = 0
        end = 0
        if self.recompute:
            bodies = self._entries(BODIES)
        else:
            bodies = iter(())
        for entry in self._entries(LOG):
            with self._within(LOG, entry, done + 1):
                found = replace(
                    audited(self.auditor, done, previous, entry.payload), offset=entry.offset
                )
            if self.recompute:
                before, anew = self._recomputed(
                    found, before if found.round == done + 1 else None, next(bodies, None)
                )
                found = replace(found, recomputed=anew)
            yield found
            previous = found.certificate.record.value(self.rules.run)
            done = found.round
            end = entry.end
        if self.network is None:
            self._check_end(done, end, bodies)
        if not done and not self._follows():
            raise UserError(f"{self.path / LOG} has no round yet: there is nothing to verify")

    def evidence(self) -> Iterator[Message]:
        """What proves itself in the log, whatever else is there; up to where it is damaged, if it is."""
        with suppress(Failed, Refused):
            for entry in self._entries(LOG):
                for _, message in unpack(entry.payload):
                    if isinstance(message.body, Evidence) and self.rules.proves(message.body):
                        yield message

    def _start(self) -> Outcome | None:
        """What the first round starts from; none where it follows a run of which no state is known."""
        start = self.application.start()
        if (self._follows() and self.heritage is None) or not start.state:
            return None
        return start

    def _follows(self) -> bool:
        """Whether another run was before this one."""
        return self.network is not None and bool(self.network.follows)

    def _check_end(self, done: int, end: int, bodies: Iterator[Entry]) -> None:
        """That neither the run's own records nor the bodies are of more rounds. A party on a network has no such records, and
        bodies one round ahead of its log when it is stopped in between."""
        for file, recorded in ((ROUNDS, self._recorded()), (RESULT, self._finished())):
            if done < recorded:
                raise Failed(
                    LOG, end, done + 1, f"the log ends, and {file} is of {recorded} rounds"
                )
        for entry in bodies:
            raise Failed(
                BODIES,
                entry.offset,
                done + 1,
                f"{LOG} has no such round (if the run was stopped: resume it)",
            )

    def _experiment(self) -> toml.Table:
        """Of a file that this program did not write, one that no federation names."""
        try:
            return toml.strict(
                self._text(EXPERIMENT) if self.network is None else self.network.experiment
            )
        except ValueError:
            return {}

    def _is_the_experiment(self) -> bool:
        try:
            return experiment_digest(self.experiment) == self.federation.experiment
        except AttributeError:  # a table that no experiment is written as
            return False

    def _recomputed(
        self, found: Audited, before: Outcome | None, entry: Entry | None
    ) -> tuple[Outcome | None, bool]:
        if entry is None:
            raise Failed(
                BODIES,
                (self.path / BODIES).stat().st_size,
                found.round,
                "the file ends before this round",
            )
        with self._within(BODIES, entry, found.round):
            return recomputed(self.auditor, self.application, found, before, entry.payload)

    @contextmanager
    def _within(self, file: str, entry: Entry, number: int) -> Iterator[None]:
        try:
            yield
        except Misplaced as error:
            raise Failed(
                file, entry.offset if error.at is None else entry.at(error.at), number, str(error)
            ) from error

    def _entries(self, name: str) -> Iterator[Entry]:
        number = 1
        try:
            for entry in hash_chain.entries(self._plain(name), self.rules.run):
                yield entry
                number += 1
        except BrokenChain as error:
            raise Failed(name, error.offset, number, str(error)) from error
        except FileNotFoundError:
            raise UserError(
                f"{self.path} has no {name}: it has never run, or lost the file; restore it then"
            ) from None
        except OSError as error:
            raise UserError(
                f"{self.path / name} cannot be read ({error.strerror}): restore it"
            ) from error

    def _text(self, name: str) -> str:
        """Byte for byte: no end of line is made another."""
        try:
            if (path := self._plain(name)).stat().st_size > _LONGEST:
                raise UserError(f"{path} is longer than any that this program writes: restore it")
            return path.read_bytes().decode()
        except FileNotFoundError:
            needed = 'only a party\'s folder, or the directory of a run with committee.name = "simulated", can be verified'
            raise UserError(f"{self.path} has no {name}: {needed}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.path / name} cannot be read: {error}; restore it") from error

    def _plain(self, name: str) -> Path:
        """The path of a file. A pipe would be waited for in vain, and a device read without end."""
        path = self.path / name
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a file: restore it")
        return path

    def _recorded(self) -> int:
        """Rounds that the run's own records have; without them, none."""
        path = self._plain(ROUNDS)
        try:
            with path.open("rb") as file:
                return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): restore it") from error

    def _finished(self) -> int:
        """All rounds, once the run has its result."""
        if (self.path / RESULT).exists():
            return self.expected()
        return 0
