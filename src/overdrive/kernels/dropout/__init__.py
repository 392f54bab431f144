"""What dropout keeps, drawn on a CPU: the C source and the operator."""
