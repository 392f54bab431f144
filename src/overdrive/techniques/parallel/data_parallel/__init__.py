"""Technique `data_parallel`, with all that it costs."""
