"""Samples of deterministic data sets, decoded once and kept: identity, dry run, table, loader."""
