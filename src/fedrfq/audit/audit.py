"""Check a run's directory, or a party's folder, round by round, without trusting anything in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from fedrfq import plugins
from fedrfq.audit.bodies import KnownBefore, Recomputed, recomputed
from fedrfq.audit.location import RefusedAt, located
from fedrfq.audit.log import AuditedRound, Auditor, audited
from fedrfq.audit.taken_back import check_remaining, taken_back
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Entries, Evidence, Message, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation import codec, decisions, federation_file
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.federation_file import Federation, check_agreed, experiment_digest
from fedrfq.federation.reconfiguration import reconfigurable
from fedrfq.federation.round_log import unpack
from fedrfq.files import hash_chain, regular, toml
from fedrfq.files.hash_chain import BrokenChain, Entry

FEDERATION = "federation.toml"
LOG = "audit.log"
BODIES = "bodies.bin"
EXPERIMENT = "experiment.toml"
ROUNDS = "rounds.jsonl"
RESULT = "result.json"
# Bytes of one line of the run's own records.
_MAX_LINE_BYTES = 1 << 24


class AuditFailed(Exception):
    """Something does not hold: in which file, from which byte on, in which round, and why."""

    def __init__(self, file: str, offset: int, round_: int, why: str) -> None:
        super().__init__(f"{file}, byte {offset}, round {round_}: {why}")
        self.file = file
        self.offset = offset
        self.round = round_
        self.why = why


class Audit:
    """The audit of one run.

    With `recompute` it reads the bodies too, and computes every outcome anew, unless the run was
    decided by another version than this program's. `inherited` is what the run started from, where
    it follows another, and `rounds_before` how many rounds the runs before it have had.
    """

    def __init__(
        self,
        path: Path,
        recompute: bool = False,
        inherited: Outcome | None = None,
        rounds_before: int = 0,
    ) -> None:
        self.path = path
        self.inherited = inherited
        self._rounds_before = rounds_before
        self.federation = self._read_federation()
        # The version of the decisions, if it is not this program's.
        self.decided_otherwise = 0
        if self.federation.decisions != decisions.VERSION:
            self.decided_otherwise = self.federation.decisions
        self.recompute = recompute and not self.decided_otherwise
        self.network = self.federation.network
        self.experiment = self._read_experiment()
        self.rules = Rules(self.federation.roster)
        self._sets: dict[int, Entries] = {}  # the uploads in the certified sets seen so far
        self.auditor = Auditor(self.federation, self.rules, partial=self.network is not None)
        if self.network is None:
            self.application = PrototypeApplication(self.federation.task)
        else:
            self.application = reconfigurable(self.federation, inherited)

    def expected(self) -> int:
        """Return how many rounds the run has once it is finished; 0 if that is unknown."""
        # The file may be anybody's, so even the type of a value is checked.
        rounds = self.experiment.get("rounds")
        if isinstance(rounds, int):
            return max(0, rounds - self._rounds_before)
        return 0

    def rounds(self) -> Iterator[AuditedRound]:
        """Yield each round once it is found to hold; raise Failed at the first that does not."""
        if not self._is_agreed_experiment():
            raise AuditFailed(EXPERIMENT, 0, 0, f"it is not the experiment that {FEDERATION} names")
        previous = self.rules.run
        before = KnownBefore(self._start())
        done = 0
        end = 0
        bodies: Iterator[Entry] = iter(())
        if self.recompute:
            bodies = self._entries(BODIES)
        for entry in self._entries(LOG):
            with self._located(LOG, entry, done + 1):
                audited_round = audited(self.auditor, done, previous, entry.payload)
            audited_round = replace(audited_round, offset=entry.offset)
            if self.recompute:
                # After a gap in a client's log, what the round started from is unknown.
                if audited_round.round != done + 1:
                    before = before._replace(outcome=None)
                found = self._recompute(audited_round, before, next(bodies, None))
                before = found.known
                audited_round = replace(
                    audited_round,
                    recomputed=found.anew,
                    reduced=self._reduced(before),
                    taken_back=self._taken_back(found.uploads),
                )
            yield audited_round
            # The chain: each record must name the value of the one before it.
            previous = audited_round.certificate.record.value(self.rules.run)
            done = audited_round.round
            end = entry.end
        if self.network is None:
            self._check_end(done, end, bodies)
        if not done and not self._follows():
            raise UserError(f"{self.path / LOG} has no round yet: there is nothing to verify")

    def evidence(self) -> Iterator[Message]:
        """Yield the log's evidence that proves itself, up to where the log is damaged, if it is.

        What else is in the log need not hold.
        """
        # Evidence proves itself, so it counts even in a log that does not hold.
        with suppress(AuditFailed, Refused):
            for entry in self._entries(LOG):
                for _, message in unpack(entry.payload):
                    if isinstance(message.body, Evidence) and self.rules.proves(message.body):
                        yield message

    def _start(self) -> Outcome | None:
        """Return what the first round starts from.

        It is None where the run follows another of which the state is unknown.
        """
        start = self.application.start()
        if (self._follows() and self.inherited is None) or not start.state:
            return None
        return start

    def _follows(self) -> bool:
        """Return whether the run follows another."""
        return self.network is not None and bool(self.network.follows)

    def _check_end(self, done: int, end: int, bodies: Iterator[Entry]) -> None:
        """Check that neither the run's own records nor the bodies have more rounds than the log.

        This is not for parties on a network: they have no such records, and if one is stopped at
        the wrong moment, its bodies are one round ahead of its log.
        """
        for file, recorded in ((ROUNDS, self._recorded_rounds()), (RESULT, self._finished())):
            if done < recorded:
                raise AuditFailed(
                    LOG, end, done + 1, f"the log ends, but {file} is of {recorded} rounds"
                )
        for entry in bodies:
            why = f"{LOG} has no such round (if the run was stopped: resume it)"
            raise AuditFailed(BODIES, entry.offset, done + 1, why)

    def _read_federation(self) -> Federation:
        """Return the federation, with the plugins that decided in it; no others are needed."""
        recorded, missing = self._recall_plugins()
        try:
            found = Federation.read(self._read_text(FEDERATION), str(self.path / FEDERATION))
            if found.network is None:
                check_agreed(found.task, recorded)
        except UserError as error:
            if missing:
                raise UserError(missing) from error
            raise
        return found

    def _recall_plugins(self) -> tuple[list[Mapping[str, str]], str]:
        """Load a simulated federation's plugins, which only the experiment beside it names.

        Return them as recorded, and which is not known here, in words.
        """
        try:
            rows = toml.strict(self._read_text(EXPERIMENT)).get("plugins", [])
        except (ValueError, UserError):
            # Whoever needs the file says what is wrong with it.
            return [], ""
        try:
            missing = plugins.recall_known(rows)
        except UserError as error:
            raise UserError(f"{self.path / EXPERIMENT}: {error}") from error
        return rows, missing and f"{self.path / EXPERIMENT}: {missing}"

    def _read_experiment(self) -> toml.Table:
        """Return the experiment, or an empty one, which nobody agreed on, if it is malformed."""
        try:
            if self.network is not None:
                return toml.strict(self.network.experiment)
            return toml.strict(self._read_text(EXPERIMENT))
        except ValueError:
            return {}

    def _is_agreed_experiment(self) -> bool:
        try:
            return experiment_digest(self.experiment) == self.federation.experiment
        except AttributeError:  # the table is not shaped like an experiment
            return False

    def _reduced(self, known: KnownBefore) -> dict[str, str]:
        """Return who counted for less in a round and why, by name, if its outcome is known."""
        if known.outcome is None:
            return {}
        try:
            clients, verdict = codec.decode_verdicts(
                known.outcome.verdicts, self.federation.task.classes
            )
        except Refused:  # certified by liars, and never computed from uploads
            return {}
        names = self.federation.class_names
        reasons = {self.auditor.name(~k): verdict.why(row, names) for row, k in enumerate(clients)}
        return {name: why for name, why in reasons.items() if why}

    def _recompute(
        self, audited_round: AuditedRound, before: KnownBefore, entry: Entry | None
    ) -> Recomputed:
        """Return what is known after a round, and whether it was computed anew."""
        if entry is None:
            end = (self.path / BODIES).stat().st_size
            raise AuditFailed(BODIES, end, audited_round.round, "the file ends before this round")
        with self._located(BODIES, entry, audited_round.round):
            found = recomputed(self.auditor, self.application, audited_round, before, entry.payload)
            self._check_remaining(audited_round, found)
        return found

    def _check_remaining(self, audited_round: AuditedRound, found: Recomputed) -> None:
        """Check statistics that can be taken back, where they were not computed anew anyway."""
        if not self.federation.task.is_revocable:
            return
        if audited_round.inputs is not None:
            self._sets[audited_round.round] = audited_round.inputs.uploads
        outcome = found.known.outcome
        if found.anew or outcome is None or not outcome.state:
            return
        sets = None if self._follows() else self._sets
        with located():
            check_remaining(self.rules, self.application, sets, outcome)

    def _taken_back(self, uploads: Sequence[Upload]) -> dict[str, str]:
        return {self.auditor.name(~k): what for k, what in taken_back(uploads).items()}

    @contextmanager
    def _located(self, file: str, entry: Entry, round_: int) -> Iterator[None]:
        """Turn a RefusedAt in the block into a Failed, with its offset in the file."""
        try:
            yield
        except RefusedAt as error:
            offset = entry.offset
            if error.at is not None:
                offset = entry.at(error.at)
            raise AuditFailed(file, offset, round_, str(error)) from error

    def _entries(self, name: str) -> Iterator[Entry]:
        # Counted here, as a broken entry cannot say which round it was of.
        number = 1
        try:
            for entry in hash_chain.entries(self.path / name, self.rules.run):
                yield entry
                number += 1
        except BrokenChain as error:
            raise AuditFailed(name, error.offset, number, str(error)) from error
        except FileNotFoundError:
            raise UserError(
                f"{self.path} has no {name}: it has never run, or lost the file; if so, restore it"
            ) from None
        except OSError as error:
            raise _unreadable(self.path / name, error) from error

    def _read_text(self, name: str) -> str:
        """Return a file's text byte for byte, without translating line ends."""
        path = self.path / name
        try:
            return regular.read_text(path, federation_file.MAX_BYTES)
        except FileNotFoundError:
            raise UserError(
                f"{self.path} has no {name}: only a party's folder, or the directory of a run with"
                ' committee.name = "simulated", can be verified'
            ) from None
        except OSError as error:
            raise _unreadable(path, error) from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not text in UTF-8: restore it") from error

    def _recorded_rounds(self) -> int:
        """Return the number of rounds in the run's own records; 0 without them."""
        path = self.path / ROUNDS
        try:
            return sum(1 for _ in regular.lines(path, _MAX_LINE_BYTES))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise _unreadable(path, error) from error

    def _finished(self) -> int:
        """Return the number of all rounds if the run has its result; otherwise 0."""
        if (self.path / RESULT).exists():
            return self.expected()
        return 0


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be read ({error.strerror}): restore it")
