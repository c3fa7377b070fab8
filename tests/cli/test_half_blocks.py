"""Pictures in a terminal: two pixels a character, in colours or in shades."""

from __future__ import annotations

import numpy as np

from fedrfq.cli.half_blocks import MAX_SIDE, half_blocks


def test_a_character_has_the_upper_pixel_in_front_and_the_lower_behind() -> None:
    image = np.array([[[255, 0], [0, 128]], [[0, 0], [0, 128]], [[0, 255], [0, 128]]], np.uint8)
    text = half_blocks(image, colours=True)
    assert text.plain == "▀▀"
    first, second = (str(span.style) for span in text.spans)
    assert first == "#ff0000 on #000000"
    assert second == "#0000ff on #808080"


def test_shades_follow_the_brightness() -> None:
    image = np.repeat(np.array([[[0, 60, 120, 180, 255]]], np.uint8), 2, axis=1)
    assert half_blocks(image, colours=False).plain == " ░▒▓█"


def test_a_large_picture_is_made_small_and_keeps_its_proportions() -> None:
    lines = half_blocks(np.zeros((1, 480, 240), np.uint8), colours=False).plain.split("\n")
    assert (len(lines), {len(line) for line in lines}) == (MAX_SIDE // 2, {MAX_SIDE // 2})
    assert half_blocks(np.zeros((1, 1, 500), np.uint8), colours=False).plain == " " * MAX_SIDE
