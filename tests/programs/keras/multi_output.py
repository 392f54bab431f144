import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(2)

n = 400
price_features = np.random.rand(n, 6).astype("float32")
picture = np.random.rand(n, 10, 10, 3).astype("float32")
price = price_features.sum(1, keepdims=True) + picture.mean((1, 2, 3))[:, None]
kind = (picture[..., 0].mean((1, 2)) > 0.5).astype("int64")

a = keras.Input((6,), name="features")
b = keras.Input((10, 10, 3), name="picture")
z = layers.Conv2D(6, 3, strides=2, activation="relu")(b)
z = layers.GlobalAveragePooling2D()(z)
z = layers.Concatenate()([layers.Dense(8, activation="relu")(a), z])
model = keras.Model([a, b], {
    "price": layers.Dense(1, name="price")(z),
    "kind": layers.Dense(2, activation="softmax", name="kind")(z),
})
model.compile(
    optimizer="adam",
    loss={"price": "mse", "kind": "sparse_categorical_crossentropy"},
    loss_weights={"price": 1.0, "kind": 0.3},
    metrics={"price": ["mae"], "kind": ["accuracy"]},
)
history = model.fit(
    {"features": price_features, "picture": picture},
    {"price": price, "kind": kind},
    batch_size=40, epochs=3, verbose=0,
    validation_data=({"features": price_features[:80], "picture": picture[:80]}, {"price": price[:80], "kind": kind[:80]}),
)
for name in sorted(history.history):
    print(name, [round(v, 4) for v in history.history[name]])
