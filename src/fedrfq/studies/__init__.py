"""Grids of runs: axes and seeds in, tables, figures and judged claims out."""
