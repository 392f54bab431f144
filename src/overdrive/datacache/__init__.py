"""Caches samples of deterministic data sets, decoded once: fingerprint, dry run, table, loader."""
