"""Techniques for programs that only call their model."""
