"""Runs that go on after they were killed: the script is run again, and what was done is skipped."""
