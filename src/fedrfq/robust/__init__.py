"""Aggregation under attack: attacks, detectors and aggregation rules on integers. No PyTorch."""
