"""Batch normalisation on a CPU while training: the C source and the operator."""
