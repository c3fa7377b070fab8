"""A seeded world in which servers and clients run, messages go astray, and some of the parties lie."""
