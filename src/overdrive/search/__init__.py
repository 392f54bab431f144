"""Searches the hyperparameters of an unmodified program: what can be varied, trials, and an honest end."""
