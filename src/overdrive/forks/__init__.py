"""Work in forked processes, and what it must leave no trace of."""
