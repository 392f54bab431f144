"""A program's model for another engine: exported, proved, with a runner of its own. `child/` runs in the trial."""
