"""The round loop, and how a round is evaluated."""
