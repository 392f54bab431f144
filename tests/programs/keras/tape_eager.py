import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(11)

x = np.linspace(-2, 2, 256, dtype="float32").reshape(-1, 1)
y = np.sin(2 * x)

net = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
opt = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))

for step in range(30):
    batch = np.random.permutation(256)[:32]
    with tf.GradientTape() as tape:
        error = tf.reduce_mean((net(x[batch], training=True) - y[batch]) ** 2)
    gradients, norm = tf.clip_by_global_norm(tape.gradient(error, net.trainable_variables), 1.0)
    opt.apply_gradients(zip(gradients, net.trainable_variables))
    if step % 10 == 9:
        print(step + 1, round(float(error), 5), round(float(norm), 5))
net.save_weights("net.weights.h5")
