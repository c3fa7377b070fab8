"""PBFT without I/O: messages, the rules they obey, and a replica as a state machine.

The protocol is that of Castro and Liskov, "Practical Byzantine Fault Tolerance" (OSDI 1999), with
one instance per round. The package uses the standard library only; a driver elsewhere does the
I/O.
"""
