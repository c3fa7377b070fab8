"""Local training of all clients at once, as one program over stacked parameters."""
