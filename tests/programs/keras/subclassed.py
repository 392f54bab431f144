import keras
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(3)


class Block(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.norm = layers.LayerNormalization()
        self.up = layers.Dense(2 * width, activation="gelu")
        self.down = layers.Dense(width)
        self.drop = layers.Dropout(0.1)

    def call(self, x, training=False):
        return x + self.drop(self.down(self.up(self.norm(x))), training=training)


class TextNet(keras.Model):
    def __init__(self, vocabulary=50, width=16, depth=2):
        super().__init__()
        self.embed = layers.Embedding(vocabulary, width)
        self.blocks = [Block(width) for _ in range(depth)]
        self.rnn = layers.GRU(16)
        self.out = layers.Dense(2)

    def call(self, tokens, training=False):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, training=training)
        return self.out(self.rnn(x))


tokens = tf.random.uniform((320, 12), 0, 50, tf.int32, seed=1)
labels = tf.cast(tf.reduce_sum(tf.cast(tokens > 25, tf.int32), 1) > 6, tf.int32)

model = TextNet()
model.compile(
    optimizer=keras.optimizers.AdamW(3e-3, weight_decay=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(tokens, labels, batch_size=32, epochs=3, verbose=0)
for epoch, (loss, acc) in enumerate(zip(history.history["loss"], history.history["accuracy"])):
    print(f"Epoch {epoch + 1} loss={loss:.4f} acc={acc:.4f}")
model.save("textnet.keras")
print("params", model.count_params())
