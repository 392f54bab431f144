"""What a forward pass keeps for its backward pass: measured, made again, split, or laid elsewhere."""
