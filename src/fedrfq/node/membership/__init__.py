"""Who takes part in a federation: keys, requests, founding, and changing the federation."""
