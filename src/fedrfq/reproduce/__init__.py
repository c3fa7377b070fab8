"""The paper's tables and figures, each from one recipe: a file of `experiments/`."""
