"""What a client's data look like to its federation, in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Console, Group
from rich.table import Table

from fedrfq.cli.terminal import say

if TYPE_CHECKING:
    from fedrfq.node.data_preview import DataPreview

# Classes of which a picture is shown.
_MAX_PICTURES = 24


def show_data(found: DataPreview, console: Console) -> None:
    """Print the counts and a picture of each class, and what would be uploaded."""
    from fedrfq.cli.half_blocks import half_blocks

    table = Table("class", "training samples", "test samples")
    for each in found.classes:
        table.add_row(each.name, str(each.train), str(each.test))
    console.print(table)
    colours = console.color_system is not None
    pictures = [
        Group(each.name, half_blocks(each.picture, colours))
        for each in found.classes
        if each.picture is not None
    ]
    console.print(Columns(pictures[:_MAX_PICTURES], padding=(1, 2)))
    if len(pictures) > _MAX_PICTURES:
        say(console, f"and {len(pictures) - _MAX_PICTURES} more classes")
    say(console, "What this client would upload:")
    for line in found.uploads:
        say(console, f"  {line}")
