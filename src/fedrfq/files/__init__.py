"""Files that survive crashes and hostile bytes: atomic writes, locks, formats, the hash chain."""
