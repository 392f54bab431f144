"""What is known of Keras's layers as PyTorch's modules, in a process of its own: prints one line of JSON."""

import json

import keras
import numpy as np
import torch
from keras import layers

from overdrive.model_state.reach import Reach
from overdrive.seams.keras.fp64 import to_double
from overdrive.seams.keras.layers_on_torch import (
    is_layer,
    kept_by_layers,
    modules_of,
    named_modules,
    trainers_own,
)


def main() -> None:
    keras.utils.set_random_seed(1)
    normal = layers.BatchNormalization(name="normal")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="dense"), normal, layers.Dropout(0.5, seed=1)])
    model.compile("adam", "mse")
    x = np.random.randn(20, 4).astype("float32")
    model.fit(x, x[:, :3], verbose=0)
    kept = {id(table[name]) for table, name in kept_by_layers(model)}
    given = torch.tensor(x[:5]).double()
    single = model(given)
    reach = Reach([model])
    held = keras.layers.Dense(3)
    model.double()
    to_double(model)
    exact = model(given)
    by_hand = given @ model.layers[0].kernel.value.double() + model.layers[0].bias.value.double()
    by_hand = (by_hand - normal.moving_mean.value.double()) / (normal.moving_variance.value.double() + 1e-3).sqrt()
    by_hand = by_hand * normal.gamma.value.double() + normal.beta.value.double()
    print(
        json.dumps(
            {
                "layers": [name for name, each in named_modules(model) if is_layer(each)],
                "known to PyTorch": normal in set(model.modules()),
                "of a plain module": len(modules_of(torch.nn.Sequential(torch.nn.Linear(2, 2)))),
                "kept": len(kept),
                "are kept": all(id(each.value) in kept for each in (normal.moving_mean, normal.moving_variance)),
                "trained is not": not any(id(each.value) in kept for each in model.trainable_variables),
                "trainer's": sorted(
                    {"optimizer", "history", "stop_training", "layers", "kernel"} & trainers_own(model)
                ),
                "of a layer": sorted(trainers_own(held)),
                "hidden": reach.hidden + reach.outward,
                "types": [str(single.dtype), str(exact.dtype)],
                "off": (exact - by_hand).abs().max().item(),
            }
        )
    )


if __name__ == "__main__":
    main()
