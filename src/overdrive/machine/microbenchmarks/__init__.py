"""Measures the machine's limits, for `overdrive.machine.limits`, in a process of its own that may import torch."""
