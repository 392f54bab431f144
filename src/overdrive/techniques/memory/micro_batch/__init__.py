"""Technique `micro_batch`, with all that it costs."""
