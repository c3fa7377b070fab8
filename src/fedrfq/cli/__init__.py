"""The command line: one module for each group of commands, with its tables beside it."""
