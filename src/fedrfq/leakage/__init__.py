"""What uploads reveal: attacks on a run's uploads, and what they win."""
