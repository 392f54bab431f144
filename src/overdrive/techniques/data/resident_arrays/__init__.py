"""Technique `resident_arrays`, with all that it costs."""
