"""Technique `steps_per_execution`, with all that it costs."""
