"""How much noise honest clients add to their class sums on a public feature map.

Everything is a whole number on the fixed-point grid, so that clients and servers agree to the bit.
A sample is a vector of at most `length`, with one more value, `one`, that counts it. A class sum
has the samples of a class, and every one of its values gets discrete Gaussian noise of the standard
deviation `sigma`. What is uploaded is made of that: the count is the last value in units of `one`,
and the mean is the sum divided by the count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

# Noise is farther off than so many standard deviations with a probability below 10⁻¹³: in a single
# value, and in the length of a vector besides what is usual (√V).
_FARTHEST = 8


@dataclass(frozen=True)
class NoiseScale:
    """The lengths of a sample's two parts, and the noise's standard deviation."""

    length: int
    one: int
    sigma: int

    @staticmethod
    def of(length: int, multiplier: float, count_share: float, samples: int = 1) -> NoiseScale:
        """Return the scale for samples clipped to a length.

        The noise is `multiplier` times what the samples that are protected together, so many of
        them, may change at most. `count_share` of that change, squared, is the count's.
        """
        share = Fraction(count_share)
        # Rational numbers and whole roots, so that all machines agree.
        one = max(math.isqrt(math.floor(length**2 * share / (1 - share))), 1)
        sensitivity = math.isqrt(length**2 + one**2) + 1
        sigma = math.ceil(Fraction(multiplier) * sensitivity * samples)
        return NoiseScale(length, one, sigma)

    def usual_square(self, values: int) -> int:
        """Return the mean square of what noise does to a sum of so many values.

        Noise in the count makes the mean longer or shorter, as if the sum were.
        """
        return self.sigma**2 * values + self.sigma**2 * self.length**2 // self.one**2

    def longest_mean(self, count: int, values: int) -> Fraction:
        """Return how long the mean of an honest upload that claims so many samples can be.

        Honest uploads are longer with a probability below 10⁻¹³.
        """
        # There may be more samples than noise lets the count say.
        samples = count + Fraction(_FARTHEST * self.sigma, self.one) + 1
        noise = self.sigma * (math.isqrt(values) + 1 + _FARTHEST)
        return (samples * self.length + noise) / count
