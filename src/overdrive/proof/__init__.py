"""Proves that a plan is still the same program: exact, rounding, statistical."""
