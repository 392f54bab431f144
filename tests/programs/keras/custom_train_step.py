import keras
import tensorflow as tf

tf.keras.utils.set_random_seed(21)


class GAN(keras.Model):
    """Two optimizers in one train_step, as in the Keras guide."""

    def __init__(self, discriminator, generator, latent):
        super().__init__()
        self.discriminator, self.generator, self.latent = discriminator, generator, latent
        self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = keras.metrics.Mean(name="g_loss")
        self.seed_generator = keras.random.SeedGenerator(13)

    @property
    def metrics(self):
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, real):
        count = tf.shape(real)[0]
        noise = keras.random.normal((count, self.latent), seed=self.seed_generator)
        both = tf.concat([self.generator(noise), real], 0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply(grads, self.discriminator.trainable_weights)
        noise = keras.random.normal((count, self.latent), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros((count, 1)), self.discriminator(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply(grads, self.generator.trainable_weights)
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {m.name: m.result() for m in self.metrics}


discriminator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
generator = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
gan = GAN(discriminator, generator, latent=4)
gan.compile(
    d_optimizer=keras.optimizers.Adam(0.003),
    g_optimizer=keras.optimizers.Adam(0.003),
    loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
)
real = tf.random.normal((320, 2), mean=[1.0, -1.0], stddev=0.2)
history = gan.fit(real, batch_size=32, epochs=2, verbose=0)
for name in ("d_loss", "g_loss"):
    print(name, [round(float(v), 4) for v in history.history[name]])
