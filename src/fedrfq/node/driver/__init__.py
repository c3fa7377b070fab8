"""Runs a state machine, a server's or a client's, on connections, a disk and a clock."""
