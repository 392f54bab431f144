import keras
import torch

keras.utils.set_random_seed(8)
torch.manual_seed(8)  # Keras seeds PyTorch only where it runs on it
x = torch.randn(300, 10)
y = (x.sum(1) > 0).float()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=30, shuffle=True)

model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1, activation="sigmoid")])
model.compile("adam", "binary_crossentropy")
history = model.fit(loader, epochs=2, verbose=0)
print([round(v, 4) for v in history.history["loss"]])
