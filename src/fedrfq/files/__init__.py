"""Files that survive crashes and hostile bytes: atomic writes, locks, TOML, JSON, tensors, the hash chain."""
