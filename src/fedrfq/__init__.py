"""fedrfq: federated learning by pooled class prototypes."""
