"""Plain data and small things that every room may use; no framework is imported."""
