"""Technique `graph_call`, with the graphs that answer."""
