"""Technique `gradient_checkpointing`, with all that it costs."""
