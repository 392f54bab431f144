import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)

images = rng.normal(size=(512, 8, 8, 1)).astype(np.float32)
labels = (images[:, :4].mean((1, 2, 3)) > images[:, 4:].mean((1, 2, 3))).astype(np.int32)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(512, seed=5).batch(32)

model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(4, 3, activation="relu"),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(2),
])
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.01)
mean_loss = tf.keras.metrics.Mean()
accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    mean_loss.update_state(loss)
    accuracy.update_state(y, logits)


for epoch in range(3):
    mean_loss.reset_state()
    accuracy.reset_state()
    for x, y in dataset:
        train_step(x, y)
    print(f"epoch {epoch + 1}, loss {float(mean_loss.result()):.4f}, accuracy {float(accuracy.result()):.4f}")
