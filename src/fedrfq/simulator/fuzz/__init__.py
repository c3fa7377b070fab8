"""Tools that try to break the committee: schedules, invariants, mutants, an exhaustive explorer."""
