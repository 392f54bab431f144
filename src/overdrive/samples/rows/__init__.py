"""Samples that are rows of arrays, gathered a batch at a time."""
