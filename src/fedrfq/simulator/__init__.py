"""A seeded world that runs servers and clients, loses their messages, and makes some of them lie."""
