"""GPU work recorded once and replayed at one launch: model calls and optimizer steps of an unmodified program."""
