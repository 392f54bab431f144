"""PyTorch's observers of a trial (see `worker.observers`)."""
