"""What an audit found, in words: rows of tables and sentences, for the terminal and the report."""

from __future__ import annotations

from fedrfq.leakage.class_counts import CountFigures
from fedrfq.leakage.record import LeakageFigures, MembershipRow

Rows = list[tuple[str, ...]]

EXPLAINED = (
    "AUC is the chance that the attacker ranks a sample of the client above another one of the "
    "same class: 0.5 is a coin, 1 is certainty. Hits are the client's samples that it names at 1 % "
    "false alarms. In brackets are 95 % intervals, bootstrapped over clients."
)


def membership_rows(found: LeakageFigures) -> Rows:
    """Return a header, and a row for each attack on membership."""
    header = ("upload", "attacker", "AUC", "hits at 1 % false alarms", "theory allows", "targets")
    return [header, *(_membership(row) for row in found.membership)]


def _membership(row: MembershipRow) -> tuple[str, ...]:
    auc = f"{row.auc:.3f} [{row.auc_low:.3f}, {row.auc_high:.3f}]"
    hits = f"{row.hits:.1%} [{row.hits_low:.1%}, {row.hits_high:.1%}]"
    targets = f"{row.members:,} + {row.others:,}"
    return row.upload, row.attacker, auc, hits, f"{row.most:.3f}", targets


def inversion_rows(found: LeakageFigures) -> Rows:
    """Return a header, and a row for each way to make images from uploads."""
    header = (
        "upload",
        "way",
        "PSNR to the client's mean",
        "to its nearest image",
        "SSIM to the mean",
        "to the nearest",
    )
    rows = [
        (
            row.upload,
            row.way,
            f"{row.psnr_mean:.1f} dB",
            f"{row.psnr_nearest:.1f} dB",
            f"{row.ssim_mean:.2f}",
            f"{row.ssim_nearest:.2f}",
        )
        for row in found.inversion
    ]
    return [header, *rows]


def counts_text(counts: CountFigures) -> list[str]:
    """Return what classes and counts alone reveal, in sentences."""
    return [
        "Servers read the classes and counts of every upload. Who knows which classes each client "
        f"holds names the right one of {counts.clients} clients with a chance of "
        f"{counts.named_by_classes:.0%} ({counts.unique_by_classes} for certain); who knows how "
        f"many samples of each, with {counts.named_by_counts:.0%} ({counts.unique_by_counts}).",
        f"Of {counts.class_rows} means that clients upload, {counts.single_samples} are of a "
        "single sample: they are that sample's vector.",
    ]
