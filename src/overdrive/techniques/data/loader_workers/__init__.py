"""Technique `loader_workers`: how many, and giving them to a loader and taking them back."""
