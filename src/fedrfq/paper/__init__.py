"""What only the FedRFQ paper asks for: Theorem 1, Lipschitz constants, failures, security."""
