"""Batches made early by a forked copy of the program, and handed out only if they are what it would have made."""
