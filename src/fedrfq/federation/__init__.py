"""What all parties of a federation share: federation.toml, what servers compute, codecs, signatures."""
