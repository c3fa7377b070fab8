"""Tools that try to break the committee: fuzzing, mutants, and an exhaustive explorer."""
