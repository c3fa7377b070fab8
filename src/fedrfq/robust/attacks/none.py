"""No attack: everyone is honest."""

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.robust.attacks.attack import Attack


@dataclass(frozen=True)
class NoAttack(Attack):
    """Malicious clients, if any are drawn, behave."""

    harms: ClassVar[bool] = False
