"""Tells of a run that goes wrong while it runs: losses that are not finite, and hangs."""
