"""A seeded world that runs servers and clients, loses messages, and lets some parties lie."""
