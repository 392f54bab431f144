"""Keeps what a trial writes away from the user's files."""
