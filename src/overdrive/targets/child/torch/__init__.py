"""The child's side of models of PyTorch."""
