"""Technique `device_resident`, with all that it costs."""
