"""Stand-ins for what this machine may not have."""
