"""Answers by model.pt2: `python run.py INPUTS.npz ANSWERS.npz`. Needs torch and NumPy alone."""

from collections.abc import Mapping
from typing import Any

import checks
import torch

model = torch._inductor.aoti_load_package(checks.artefact())


def answer(inputs: Mapping[str, Any]) -> checks.Arrays:
    """The model's outputs by name, as arrays, of its inputs by name; ValueError where signature.json wants others."""
    with torch.inference_mode():
        return checks.named([each.numpy() for each in model(*map(torch.from_numpy, checks.checked(inputs)))])


if __name__ == "__main__":
    checks.main(answer)
