import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(9)

SIZE = 16
raw = np.random.randint(0, 256, (480, SIZE, SIZE, 3), dtype=np.uint8)
target = raw[..., 0].mean((1, 2)) > raw[..., 2].mean((1, 2))


def prepare(image, label):
    image = tf.image.convert_image_dtype(image, tf.float32)
    image = tf.image.resize(image, (20, 20))
    return image, tf.cast(label, tf.float32)


def augment(image, label):
    image = tf.image.stateless_random_crop(image, (SIZE, SIZE, 3), seed=(1, 2))
    return tf.image.flip_left_right(image), label


train = (
    tf.data.Dataset.from_tensor_slices((raw[:400], target[:400]))
    .map(prepare)
    .shuffle(400, seed=9)
    .map(augment)
    .batch(25)
)
test = tf.data.Dataset.from_tensor_slices((raw[400:], target[400:])).map(prepare).map(augment).batch(40)

model = keras.Sequential([
    keras.layers.Conv2D(8, 3, activation="relu"),
    keras.layers.GlobalMaxPooling2D(),
    keras.layers.Dense(1, activation="sigmoid"),
])
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(train, epochs=3, validation_data=test, verbose=2)
print({key: round(values[-1], 4) for key, values in sorted(history.history.items())})
