import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import keras
import numpy as np

keras.utils.set_random_seed(7)

# three classes, very unequal
labels = np.random.choice(3, size=600, p=[0.7, 0.2, 0.1])
x = np.random.randn(600, 12, 12, 1).astype("float32")
for i, l in enumerate(labels):
    x[i, 3 * l : 3 * l + 4, :, 0] += 1.5
y = keras.utils.to_categorical(labels, 3)
counts = np.bincount(labels)
class_weight = {i: len(labels) / (3 * c) for i, c in enumerate(counts)}

model = keras.Sequential([
    keras.layers.Conv2D(8, 3, activation="relu"),
    keras.layers.BatchNormalization(),
    keras.layers.MaxPooling2D(),
    keras.layers.Flatten(),
    keras.layers.Dropout(0.3),
    keras.layers.Dense(3, activation="softmax"),
])
model.compile(
    optimizer=keras.optimizers.SGD(learning_rate=0.05, momentum=0.9),
    loss="categorical_crossentropy",
    metrics=["accuracy", keras.metrics.AUC(name="auc")],
)


class BatchLosses(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: loss {logs['loss']:.4f} val_loss {logs['val_loss']:.4f} lr {float(self.model.optimizer.learning_rate):.5f}")


seen = BatchLosses()
history = model.fit(
    x, y,
    batch_size=32,
    epochs=6,
    validation_split=0.2,
    class_weight=class_weight,
    verbose=2,
    callbacks=[
        seen,
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_lr=1e-4),
        keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9 if epoch else lr),
        keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
        keras.callbacks.CSVLogger("history.csv"),
    ],
)
print(len(seen.losses), "batches, last", " ".join(f"{l:.4f}" for l in seen.losses[-3:]))
print("best", min(round(v, 4) for v in history.history["val_loss"]))
