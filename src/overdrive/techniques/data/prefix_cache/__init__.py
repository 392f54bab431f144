"""The first half of an augmented sample: what is done before the first random draw, found and kept."""
