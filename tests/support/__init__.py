"""What several tests share: small federations, scripted networks, real processes."""
