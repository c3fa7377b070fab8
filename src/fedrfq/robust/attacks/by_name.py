"""The registry of attacks, for attacks that are made of others."""

from __future__ import annotations

from fedrfq.errors import UserError, did_you_mean
from fedrfq.robust.attacks.attack import MAX_STRENGTH, Attack

# Filled by the package's __init__.py, because it must import the attacks that look into it.
ATTACKS: dict[str, type[Attack]] = {}


def inner_attack(key: str, name: str, factor: float) -> Attack:
    """Return the attack on uploads of that name, with `factor` times its default strength."""
    choices = [other for other, kind in ATTACKS.items() if kind.on_uploads]
    if name not in choices:
        raise UserError(
            f"{key} must be an attack that changes uploads ({', '.join(choices)}), not '{name}'"
            f"{did_you_mean(name, choices)}"
        )
    kind = ATTACKS[name]
    return kind(strength=min(factor * kind().strength, MAX_STRENGTH))
