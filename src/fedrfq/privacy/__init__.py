"""Differential privacy on a public map: noise, its accounting, and what may be claimed of it."""
