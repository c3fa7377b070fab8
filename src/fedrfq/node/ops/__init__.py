"""How operators see and start nodes: status, metrics, health checks, local clusters."""
