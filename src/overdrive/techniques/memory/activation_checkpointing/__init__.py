"""Technique `activation_checkpointing`, with all that it costs."""
