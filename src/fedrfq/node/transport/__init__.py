"""TLS connections between parties, each within a budget."""
