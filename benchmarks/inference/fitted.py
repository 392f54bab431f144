"""The last layer of a network with drawn weights, as if it were trained: else all pictures are much alike to it."""

import torch
from torch import nn


def fit_last_layer(model, pictures, batch):
    """It tells these apart."""
    last, seen = [each for each in model.modules() if isinstance(each, nn.Linear)][-1], []
    hook = last.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    for few in pictures.split(batch):
        model(few)
    hook.remove()
    features = torch.cat(seen)
    centre = features.mean(dim=0)
    apart = (features - centre) / (features - centre).norm(dim=1, keepdim=True)
    last.weight[: len(apart)], last.bias[: len(apart)] = apart, -(apart @ centre)
    last.weight[len(apart) :], last.bias[len(apart) :] = 0, -1
