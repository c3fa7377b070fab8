"""What only the FedRFQ paper asks for: Theorem 1, Lipschitz constants, prototype failures, security probability."""
