"""An experiment: everything that decides a run, as frozen dataclasses, and as one TOML file.

Settings come from `--set`, then the file, then what suits the data, then the defaults here. An unknown key is an error
that names the nearest known one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from fedrfq.committee import COMMITTEES, Committee, Direct
from fedrfq.data import DATASETS, at_path
from fedrfq.data.partition import PARTITIONS, Classes, Kind
from fedrfq.engine.engine import TrainingOptions
from fedrfq.errors import UserError, nearest
from fedrfq.files import toml
from fedrfq.files.toml import Table
from fedrfq.methods import METHODS, Method
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.models import MODELS, Model
from fedrfq.models.cnn import CNN
from fedrfq.prototypes.fixed_point import MOST_VALUES
from fedrfq.prototypes.pooling import Pool
from fedrfq.robust.attacks import ATTACKS, Attack
from fedrfq.robust.attacks.none import NoAttack
from fedrfq.robust.detectors import DETECTORS, Detector
from fedrfq.robust.detectors.none import NoDetection

T = TypeVar("T")
_PLAIN = re.compile(r"\w[\w .-]*")
_LONGEST_NAME = 200  # bytes
STARTS = ("own", "same")


@dataclass(frozen=True)
class Data:
    name: str = "mnist5k"
    augment: bool = False


@dataclass(frozen=True)
class Cohort:
    """Clients that hold one and the same model."""

    clients: int
    model: Model


@dataclass(frozen=True)
class Experiment:
    """One run. Sections with a `name` are one of several kinds, each with options of its own."""

    name: str = "run"
    seed: int = 0
    rounds: int = 100
    clients: int = 20
    participation: float = 1.0  # the share of clients that train in a round
    init: str = "own"  # each client its own random start, or the same for all
    checkpoint: int = 10  # rounds between checkpoints
    validation: float = 0.0  # of each client's training samples, held back: it is tested on them, not on test samples
    data: Data = field(default_factory=Data)
    partition: Kind = field(default_factory=Classes)
    model: Model = field(default_factory=CNN)
    cohorts: tuple[Cohort, ...] = ()  # none: every client holds `model`
    pool: Pool = field(default_factory=Pool)
    method: Method = field(default_factory=FedRFQ)
    train: TrainingOptions = field(default_factory=TrainingOptions)
    attack: Attack = field(default_factory=NoAttack)
    detector: Detector = field(default_factory=NoDetection)
    committee: Committee = field(default_factory=Direct)

    def __post_init__(self) -> None:
        for key, least in (("rounds", 1), ("clients", 1), ("checkpoint", 1), ("seed", 0)):
            if getattr(self, key) < least:
                raise UserError(f"{key} must be at least {least}, it is {getattr(self, key)}")
        if not _PLAIN.fullmatch(self.name) or len(self.name.encode()) > _LONGEST_NAME:
            raise UserError(
                f"name is a folder's: letters, digits, spaces, '.', '_' and '-', {_LONGEST_NAME} at most, not {self.name!r}"
            )
        if not 0 < self.participation <= 1:
            raise UserError(f"participation is a share in (0, 1], not {self.participation}")
        if not 0 <= self.validation < 1:
            raise UserError(f"validation is a share in [0, 1), not {self.validation}")
        if self.init not in STARTS:
            raise UserError(f"init is one of {', '.join(STARTS)}, not '{self.init}'")
        if self.pool.name != "none" and not self.method.pools:
            raise UserError(
                f"method '{name_of(METHODS, self.method)}' does not pool: set pool.name = \"none\", or use fedrfq"
            )
        self._check_attack()
        self._check_cohorts()

    def _check_attack(self) -> None:
        if self.attack.clients > self.clients:
            raise UserError(
                f"attack.clients = {self.attack.clients} of {self.clients} clients: there are not so many"
            )
        method = name_of(METHODS, self.method)
        if self.attack.on_uploads and not self.method.exchanges:
            raise UserError(
                f"attack '{name_of(ATTACKS, self.attack)}' is on prototypes, and '{method}' exchanges none"
            )
        if not isinstance(self.detector, NoDetection) and not self.method.exchanges:
            raise UserError(
                f"detectors judge prototypes, and '{method}' exchanges none: set detector.name = \"none\""
            )
        if self.attack.harms and not self.attack.clients:
            raise UserError(
                f"attack '{name_of(ATTACKS, self.attack)}' by no client: set attack.clients to how many attack"
            )
        if not isinstance(self.committee, Direct) and not self.method.exchanges:
            raise UserError(
                f"a committee agrees on prototypes only, and '{method}' exchanges none: set committee.name = \"direct\""
            )

    def _check_cohorts(self) -> None:
        if self.cohorts and sum(cohort.clients for cohort in self.cohorts) != self.clients:
            found = " + ".join(str(cohort.clients) for cohort in self.cohorts)
            raise UserError(
                f"the cohorts have {found} clients, the experiment {self.clients}: make them equal"
            )
        if len(self.cohorts) > 1 and self.method.centres:
            raise UserError(
                f"'{name_of(METHODS, self.method)}' averages models, so all clients hold the same: no cohorts"
            )
        if self.method.centres > self.clients:
            raise UserError(
                f"{self.method.centres} global models for {self.clients} clients: lower method.clusters"
            )
        if self.train.alone and self.method.centres:
            raise UserError(
                f"'{name_of(METHODS, self.method)}' averages models, which lie in one stack: no train.alone"
            )
        lengths = {cohort.model.features() for cohort in self.models()}
        if len(lengths) > 1:
            raise UserError(
                f"the cohorts' prototypes have {sorted(lengths)} values: they must have one length"
            )
        self.pool.check(min(lengths))
        if self.prototype_size() > MOST_VALUES:
            raise UserError(
                f"a prototype has {self.prototype_size()} values, more than the {MOST_VALUES} an upload can hold"
            )

    def models(self) -> tuple[Cohort, ...]:
        """Clients that are computed in one program, cohort after cohort: those of one model, or each client alone."""
        if not self.train.alone:
            return self._alike()
        return tuple(
            Cohort(1, cohort.model) for cohort in self._alike() for _ in range(cohort.clients)
        )

    def place(self, client: int) -> tuple[int, Model]:
        """The first client that holds the same model as this one, and that model."""
        first = 0
        for cohort in self._alike():
            if first <= client < first + cohort.clients:
                return first, cohort.model
            first += cohort.clients
        raise UserError(f"client {client}: the experiment has clients 0 to {self.clients - 1}")

    def _alike(self) -> tuple[Cohort, ...]:
        return self.cohorts or (Cohort(self.clients, self.model),)

    def prototype_size(self) -> int:
        """V: the values of a pooled prototype."""
        return self.pool.size(self.models()[0].model.features())

    def table(self) -> Table:
        """The whole experiment as plain values; `from_table` reads it back."""
        table: Table = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in _SECTIONS
        }
        table |= {key: dict(vars(getattr(self, key))) for key in ("data", "pool", "train")}
        if not self.train.alone:
            del table["train"][
                "alone"
            ]  # so that hashes, and runs' ids, from before there was the option stay
        for key, kinds in _KINDS.items():
            value = getattr(self, key)
            table[key] = {"name": name_of(kinds, value), **vars(value)}
        if self.cohorts:
            rows = [
                {"clients": c.clients, "name": name_of(MODELS, c.model), **vars(c.model)}
                for c in self.cohorts
            ]
            table["cohorts"] = rows
        return table

    def hash(self) -> str:
        """One trusted server is left out of it: checkpoints from before there were committees are still its own."""
        table = self.table()
        if isinstance(self.committee, Direct):
            del table["committee"]
        return hashlib.sha256(toml.dump(table).encode()).hexdigest()


_KINDS: dict[str, Mapping[str, type[Any]]] = {
    "partition": PARTITIONS,
    "model": MODELS,
    "method": METHODS,
    "attack": ATTACKS,
    "detector": DETECTORS,
    "committee": COMMITTEES,
}
_DEFAULT_KIND = {
    "partition": "classes",
    "model": "cnn",
    "method": "fedrfq",
    "attack": "none",
    "detector": "none",
    "committee": "direct",
}
_SECTIONS = (
    "data",
    "partition",
    "model",
    "cohorts",
    "pool",
    "method",
    "train",
    "attack",
    "detector",
    "committee",
)


def load(path: Path | None = None, sets: Sequence[str] = (), **top: Any) -> Experiment:
    """The experiment of a file (or the default one) with `--set`s and top-level keys applied."""
    over: Table = {}
    for assignment in sets:
        over = toml.assign(over, assignment)
    over = toml.merge(over, {key: value for key, value in top.items() if value is not None})
    return from_table(toml.merge(switched(toml.read(path), over) if path else {}, over))


def switched(table: Table, over: Mapping[str, Any]) -> Table:
    """The file's table without what belongs to its own kinds, where others are set over them."""
    for key, kinds in _KINDS.items():
        section = _section(table, key)
        before = section.get("name", _DEFAULT_KIND[key])
        if isinstance(over.get(key), Mapping):
            chosen = over[key].get("name", before)
        else:
            chosen = before
        if chosen == before or chosen not in list(kinds) or before not in list(kinds):
            continue
        table = {**table, key: _without(section, kinds[before], kinds[chosen])}
        if key == "method" and kinds[before].pool != kinds[chosen].pool:
            table.pop("pool", None)
        if key == "method" and table.get("name") == _automatic(_section(table, "data"), before):
            table.pop("name")
    return table


def _without(section: Table, before: type[Any], chosen: type[Any]) -> Table:
    """A section's settings less the old kind's defaults, and less what the new kind does not know."""
    old = {f.name: f.default for f in fields(before)}
    gone = {name for name, value in section.items() if name in old and old[name] == value}
    unknown = set(old) - {f.name for f in fields(chosen)}
    return {name: value for name, value in section.items() if name not in gone | unknown}


def _automatic(data: Mapping[str, Any], method: str) -> str:
    """The name of a run that was given none."""
    plain = re.sub(r"[^\w.-]", "-", Path(str(data.get("name", Data.name))).stem).lstrip(".-")
    return f"{plain or 'own'}-{method}"


def from_table(given: Mapping[str, Any]) -> Experiment:
    """The experiment a table describes; what it leaves open is filled with what suits its data."""
    known(given, [f.name for f in fields(Experiment)], "")
    data = {"name": Data.name, **_section(given, "data")}
    _typed(data["name"], str, "data.name")
    if data["name"] not in DATASETS and (path := at_path(data["name"])):
        data["name"] = str(path.resolve())  # so that the run can be resumed from anywhere
    if data["name"] in DATASETS:
        suits = DATASETS[data["name"]].settings
    else:
        suits = {}
    method = _kind("method", given, suits)
    sections: Table = {
        "data": _build(Data, data, "data", suits.get("data", {})),
        "train": _build(TrainingOptions, _section(given, "train"), "train", suits.get("train", {})),
        "partition": _kind("partition", given, suits),
        "model": _kind("model", given, suits),
        "cohorts": _cohorts(given, suits),
        "method": method,
        "pool": _build(Pool, _section(given, "pool"), "pool", method.pool),
        "attack": _kind("attack", given, suits),
        "detector": _kind("detector", given, suits),
        "committee": _kind("committee", given, suits),
    }
    top = {key: value for key, value in given.items() if key not in _SECTIONS}
    name = _automatic(data, name_of(METHODS, method))
    return _build(Experiment, top, "", {"name": name, **suits, **sections})


def _section(given: Mapping[str, Any], key: str) -> Table:
    section = given.get(key, {})
    if not isinstance(section, Mapping):
        raise UserError(
            f"{key} is a section, such as [{key}] or --set {key}.name=…, not the value {section!r}"
        )
    return dict(section)


def _kind(key: str, given: Mapping[str, Any], suits: Mapping[str, Any]) -> Any:
    """A section that names its kind: the kind's dataclass, built from the rest."""
    return _of_kind(key, _section(given, key), suits.get(key, {}), key)


def _of_kind(key: str, section: Table, suits: Mapping[str, Any], path: str) -> Any:
    kinds = _KINDS[key]
    name = _typed(section.pop("name", suits.get("name", _DEFAULT_KIND[key])), str, f"{path}.name")
    if name not in kinds:
        raise UserError(
            f"{path}.name is one of {', '.join(kinds)}, not {name!r}{nearest(str(name), kinds)}"
        )
    _check_owner(section, name, kinds, path)
    return _build(kinds[name], section, path, suits)


def _check_owner(
    section: Mapping[str, Any], name: str, kinds: Mapping[str, type[Any]], path: str
) -> None:
    """That no setting is one of other kinds only."""
    names = {kind: {f.name for f in fields(kinds[kind])} for kind in kinds}
    for key in section:
        owners = [kind for kind in kinds if key in names[kind]]
        if owners and name not in owners:
            raise UserError(
                f"unknown key {path}.{key} of {name}: it belongs to {path}.name = {' or '.join(owners)}"
            )


def _cohorts(given: Mapping[str, Any], suits: Mapping[str, Any]) -> tuple[Cohort, ...]:
    """Each cohort's own settings laid over those of `model`."""
    rows = given.get("cohorts", [])
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise UserError(
            "cohorts is a list of tables: [[cohorts]] with clients = … and a model's settings"
        )
    cohorts = []
    for i, row in enumerate(rows):
        clients = _typed(row.get("clients"), int, f"cohorts[{i}].clients")
        own = {key: value for key, value in row.items() if key != "clients"}
        shared = _section(given, "model")
        common = shared.get("name", suits.get("model", {}).get("name", _DEFAULT_KIND["model"]))
        if own.get("name", common) == common:
            under = shared
        else:
            under = {}
        model = _of_kind("model", {**under, **own}, suits.get("model", {}), f"cohorts[{i}]")
        if clients < 1:
            raise UserError(f"cohorts[{i}].clients must be at least 1, it is {clients}")
        cohorts.append(Cohort(clients, model))
    return tuple(cohorts)


def _build(cls: type[T], given: Mapping[str, Any], path: str, suits: Mapping[str, Any]) -> T:
    """A dataclass from the given values (strictly its fields) and those of `suits` that it has."""
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    known(given, names, path)
    values = {name: suits[name] for name in names if name in suits}
    for key, value in given.items():
        values[key] = _typed(value, hints[key], f"{path}.{key}" if path else key)
    return cls(**values)


def _typed(value: Any, hint: Any, path: str) -> Any:
    """The value, if it is of the type; a whole number will do for a float."""
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        expected = {
            int: "a whole number",
            float: "a number",
            str: "a string",
            bool: "true or false",
        }.get(hint, str(hint))
        raise UserError(f"{path} must be {expected}, not {value!r}")
    return value


def known(given: Mapping[str, Any], names: Sequence[str], path: str) -> None:
    for key in given:
        if key not in names:
            if path:
                full = f"{path}.{key}"
            else:
                full = key
            if names:
                known = f": {', '.join(names)}"
            else:
                known = ""
            raise UserError(
                f"unknown key {full}{nearest(key, names)}; known here{known or ' are none'}"
            )


def name_of(kinds: Mapping[str, type[Any]], value: object) -> str:
    return next(name for name, kind in kinds.items() if kind is type(value))
