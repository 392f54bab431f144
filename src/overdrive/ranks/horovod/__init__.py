"""Horovod's public interface for PyTorch on our own ranks: its scripts run unmodified where it is not installed."""
