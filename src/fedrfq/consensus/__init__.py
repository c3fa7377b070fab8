"""Byzantine agreement without I/O: messages, rules, and a replica that is a state machine. Standard library only."""
