"""Technique `tensor_parallel`, with all that it costs."""
