"""The aggregation rules by name. A new rule is a file beside these and a line here."""

from fedrfq.robust.rules.rule import Forgetful, Rule

RULES: dict[str, Rule] = {
    "weighted": Forgetful("weighted"),
    "mean": Forgetful("mean"),
    "paper": Forgetful("paper"),
    "median": Forgetful("median"),
    "trimmed": Forgetful("trimmed"),
}

__all__ = ["RULES", "Rule"]
