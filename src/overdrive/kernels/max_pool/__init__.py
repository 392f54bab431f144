"""Max pooling of 2 x 2 elements on a CPU: the C source and the operator."""
