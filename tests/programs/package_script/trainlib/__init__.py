from .engine import evaluate, fit
from .model import build_model

__all__ = ["build_model", "evaluate", "fit"]
