"""What runs where, and what it holds: attempts, claims, shares, quotas and usage."""
