"""Where a program's time goes, and what hardware it needs."""
