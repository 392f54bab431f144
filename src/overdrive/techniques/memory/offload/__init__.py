"""Technique `offload`, with all that it costs."""
