"""No attack: everyone is honest."""

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.files.options import option
from fedrfq.robust.attacks.attack import Attack


@dataclass(frozen=True)
class NoAttack(Attack):
    strength: float = option(1.0, "Has no effect without an attack", "0 to 1,000,000")

    """Malicious clients, if any are drawn, behave."""

    harms: ClassVar[bool] = False
