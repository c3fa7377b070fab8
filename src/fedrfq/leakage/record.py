"""What an audit found, as leakage.json and leakage.png beside a run's other files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from fedrfq.errors import UserError
from fedrfq.files import regular
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import from_json, to_json
from fedrfq.leakage.class_counts import CountFigures

LEAKAGE = "leakage.json"
PICTURES = "leakage.png"
# Reports read runs of others: larger files are refused.
_MAX_BYTES = 1 << 20
_MAX_PICTURE_BYTES = 1 << 22
_MAX_ROWS = 200
# No figure is larger; of larger integers not even a text could be made.
_MAX_NUMBER = 1 << 64
_PNG = b"\x89PNG\r\n\x1a\n"

T = TypeVar("T")


@dataclass(frozen=True)
class MembershipRow:
    """What one attack on membership won; `low` and `high` are the ends of a 95 % interval."""

    upload: str
    attacker: str
    members: int
    others: int
    auc: float
    auc_low: float
    auc_high: float
    # True positives at 1 % false positives.
    hits: float
    hits_low: float
    hits_high: float
    # What theory allows where there is noise, else 1: nobody can do better.
    most: float


@dataclass(frozen=True)
class InversionRow:
    """How near images made from uploads come to the client's: to their mean, and to the nearest."""

    upload: str
    way: str
    images: int
    psnr_mean: float
    psnr_nearest: float
    ssim_mean: float
    ssim_nearest: float


@dataclass(frozen=True)
class LeakageFigures:
    """All that an audit found."""

    shadows: int
    seed: int
    revision: str
    counts: CountFigures
    membership: tuple[MembershipRow, ...]
    inversion: tuple[InversionRow, ...]
    notes: tuple[str, ...]

    def save(self, folder: Path, pictures: bytes) -> list[Path]:
        """Write the figures and the pictures, if there are any; return the files' paths."""
        written = [folder / LEAKAGE]
        write_atomically(folder / LEAKAGE, f"{to_json(asdict(self), indent=2)}\n".encode())
        if pictures:
            write_atomically(folder / PICTURES, pictures)
            written.append(folder / PICTURES)
        return written

    @staticmethod
    def load(folder: Path) -> LeakageFigures | None:
        """Return what was found, or None where no audit was made."""
        path = folder / LEAKAGE
        if not path.is_file():
            return None
        try:
            table = from_json(regular.read_text(path, _MAX_BYTES))
            return _audit(table)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"cannot read {path} ({error}): run `fedrfq audit-privacy` again, or remove it"
            ) from error


def load_pictures(folder: Path) -> bytes:
    """Return the PNG file of pictures, or nothing where there is none."""
    path = folder / PICTURES
    if not path.is_file():
        return b""
    try:
        content = regular.read_bytes(path, _MAX_PICTURE_BYTES)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error}): remove it") from error
    if not content.startswith(_PNG):
        raise UserError(f"{path} is not a PNG file: remove it")
    return content


def _audit(table: Any) -> LeakageFigures:
    given = {field.name: table[field.name] for field in fields(LeakageFigures)}
    given["counts"] = _row(CountFigures, given["counts"])
    given["membership"] = _rows(MembershipRow, given["membership"])
    given["inversion"] = _rows(InversionRow, given["inversion"])
    given["notes"] = tuple(_checked("a note", note, (str,)) for note in _few(given["notes"]))
    return _row(LeakageFigures, given)


def _rows(kind: type[T], given: Any) -> tuple[T, ...]:
    return tuple(_row(kind, row) for row in _few(given))


def _few(given: Any) -> list[Any]:
    if not isinstance(given, list) or len(given) > _MAX_ROWS:
        raise ValueError(f"it does not have lists of at most {_MAX_ROWS} rows")
    return given


def _row(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return a row whose numbers are numbers and whose texts are texts."""
    plain: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    found = {
        field.name: _checked(field.name, given[field.name], plain.get(str(field.type), (object,)))
        for field in fields(kind)  # type: ignore[arg-type]
    }
    return kind(**found)


def _checked(name: str, value: Any, wanted: tuple[type, ...]) -> Any:
    is_known = isinstance(value, wanted) and not isinstance(value, bool)
    # Not a number is not at most anything, either.
    is_large = isinstance(value, int | float) and not abs(value) <= _MAX_NUMBER
    if not is_known or is_large:
        raise ValueError(f"{name} is {value!r:.40}")
    return value
