"""No attack: everyone is honest."""

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.files.options import option
from fedrfq.robust.attacks.attack import STRENGTHS, Attack


@dataclass(frozen=True)
class NoAttack(Attack):
    """Clients drawn as malicious, if any, behave honestly."""

    strength: float = option(1.0, "Has no effect without an attack", STRENGTHS)

    harms: ClassVar[bool] = False
