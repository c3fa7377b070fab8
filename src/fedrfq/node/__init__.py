"""The committee on a real network: parties with keys, TLS between them, a disk each."""
