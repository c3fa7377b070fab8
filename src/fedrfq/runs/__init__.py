"""A run on disk: starting, resuming, checkpoints, summaries, and inference with trained models."""
