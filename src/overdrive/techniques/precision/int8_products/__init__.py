"""Technique `int8_products`, with the weights that it multiplies with."""
