"""Who takes part: keys, requests, founding a federation, and changing it."""
