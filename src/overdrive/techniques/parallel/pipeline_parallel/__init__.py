"""Technique `pipeline_parallel`, with all that it costs."""
