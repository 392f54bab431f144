"""Small files in a few tar shards with an index, read by their paths."""
