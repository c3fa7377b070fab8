"""The attacks by name. A new attack is a file beside these and a line here."""

from fedrfq.robust.attacks.adaptive import AdaptiveAttack
from fedrfq.robust.attacks.alie import Alie
from fedrfq.robust.attacks.attack import Attack, Foreseen, Scene
from fedrfq.robust.attacks.backdoor import Backdoor
from fedrfq.robust.attacks.by_name import ATTACKS
from fedrfq.robust.attacks.capture import Capture
from fedrfq.robust.attacks.drift import Drift
from fedrfq.robust.attacks.frame import Frame
from fedrfq.robust.attacks.groups import TwoGroups
from fedrfq.robust.attacks.inflate import Inflate
from fedrfq.robust.attacks.ipm import Ipm
from fedrfq.robust.attacks.label_flip import LabelFlip
from fedrfq.robust.attacks.mimic import Mimic
from fedrfq.robust.attacks.min_max import MinMax
from fedrfq.robust.attacks.noise import GaussianNoise
from fedrfq.robust.attacks.none import NoAttack
from fedrfq.robust.attacks.optimal_alie import OptimalAlie
from fedrfq.robust.attacks.optimal_frame import OptimalFrame
from fedrfq.robust.attacks.optimal_ipm import OptimalIpm
from fedrfq.robust.attacks.optimal_swap import OptimalSwap
from fedrfq.robust.attacks.random_values import RandomValues
from fedrfq.robust.attacks.scale import Scale
from fedrfq.robust.attacks.sign_flip import SignFlip
from fedrfq.robust.attacks.sleeper import Sleeper
from fedrfq.robust.attacks.sole import Sole
from fedrfq.robust.attacks.swap import Swap

ATTACKS |= {
    "none": NoAttack,
    "label-flip": LabelFlip,
    "noise": GaussianNoise,
    "sign-flip": SignFlip,
    "scale": Scale,
    "swap": Swap,
    "random": RandomValues,
    "inflate": Inflate,
    "ipm": Ipm,
    "alie": Alie,
    "mimic": Mimic,
    "min-max": MinMax,
    "adaptive": AdaptiveAttack,
    "frame": Frame,
    "optimal-ipm": OptimalIpm,
    "optimal-alie": OptimalAlie,
    "optimal-frame": OptimalFrame,
    "optimal-swap": OptimalSwap,
    "drift": Drift,
    "sleeper": Sleeper,
    "backdoor": Backdoor,
    "capture": Capture,
    "sole": Sole,
    "groups": TwoGroups,
}

__all__ = ["ATTACKS", "Attack", "Foreseen", "Scene"]
