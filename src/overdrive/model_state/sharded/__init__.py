"""Optimizer's state, gradients and parameters of which each rank keeps its share."""
