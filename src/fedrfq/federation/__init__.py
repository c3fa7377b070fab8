"""What all parties of a federation share: federation.toml, the committee's task, and codecs."""
