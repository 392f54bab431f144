"""Small programs that train nothing, as people write them: python answering.py NAME [SEED].

`images`: a convolutional network over a data set in batches, the last of them smaller; transforms in the data set;
labels by argmax, with pixels that are whole numbers, so that ties are real ones. `tokens`: an encoder that answers
requests of many lengths, padded and masked; half-way its weights are replaced, as a server does that reloads a model.
`images` forgets to turn gradients off. `feedback` is given what it answered before, and chaotic: two runs of it that
differ in a bit have nothing in common soon. `turns` has three models in turn: what an encoder makes of a request a
decoder answers, word by word, and another model grades. `streams` goes on from what its calls have left: in an
attribute of the model, that moves slowly, and in a cache that it is given and that each call makes longer.
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 5
LENGTHS = (5, 8, 8, 8, 12, 5, 8)


class Pictures(Dataset):
    def __init__(self, count, seed):
        chance = np.random.default_rng(seed)
        self.pixels = chance.integers(0, 256, size=(count, 3, 8, 8)).astype(np.uint8)
        self.labels = chance.integers(CLASSES, size=count)

    def __len__(self):
        return len(self.labels)

    def scaled(self, image):
        return image / 255

    def centred(self, image):
        return (image - torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / 0.25

    def __getitem__(self, index):
        return self.centred(self.scaled(torch.from_numpy(self.pixels[index]).float())), self.labels[index]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        scores = self.head(F.relu(self.conv2(x)).mean((2, 3)))
        return scores, scores.round().argmax(1)  # rounded: some are equal


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        weights = self.query(x) @ self.key(x).transpose(1, 2) / 4
        weights = weights.masked_fill(~mask[:, None, :], float("-inf")).softmax(-1)
        x = x + weights @ self.value(x)
        return {"scores": self.head((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))}


def images(seed):
    torch.manual_seed(seed)
    model = Network()
    model.norm1.running_mean.normal_(0, 0.3)
    model.norm1.running_var.uniform_(0.5, 1.5)
    with torch.no_grad():
        model.head.weight.mul_(10)
    model.eval()
    right = 0
    for x, labels in DataLoader(Pictures(8 * 40 + 3, seed), batch_size=8):
        _, found = model(x)
        right += (found == labels).sum().item()
    print(f"right: {right}")


def tokens(seed):
    torch.manual_seed(seed)
    model, chance = Encoder().eval(), torch.Generator().manual_seed(seed)
    others = {name: torch.randn(value.shape, generator=chance) * 0.3 for name, value in model.state_dict().items()}
    for request in range(48):
        length = LENGTHS[request % len(LENGTHS)]
        asked = torch.randint(50, (4, length), generator=chance)
        mask = torch.arange(length)[None] < torch.randint(2, length + 1, (4, 1), generator=chance)
        with torch.no_grad():
            model(asked, mask)["scores"].softmax(-1)
        if request == 23:
            model.load_state_dict(others)


def feedback(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)).eval()
    x = torch.randn(4, 16)
    with torch.no_grad():
        for _ in range(40):
            x = torch.sin(1000 * model(x))
    print(f"{x.sum().item():.6f}")


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.state, self.head = nn.Embedding(CLASSES, 16), nn.Linear(CLASSES, 16), nn.Linear(16, CLASSES)

    def forward(self, word, state):
        return self.head(torch.tanh(self.embed(word) + self.state(state)))


def turns(seed):
    torch.manual_seed(seed)
    encoder, decoder, grader = Encoder().eval(), Decoder().eval(), nn.Linear(CLASSES, 3).eval()
    chance, words = torch.Generator().manual_seed(seed), 0
    with torch.no_grad():
        for _ in range(40):
            asked = torch.randint(50, (8, 6), generator=chance)
            state = encoder(asked, torch.ones_like(asked, dtype=torch.bool))["scores"]
            word = torch.zeros(8, dtype=torch.long)
            for _ in range(3):
                word = decoder(word, state).argmax(1)
                words += word.sum().item()
            grader(state)
    print(f"words: {words}")


class Cache:
    def __init__(self):
        self.seen = torch.zeros(8, 0, 16)

    def update(self, x):
        self.seen = torch.cat([self.seen, x[:, None]], 1)
        return self.seen


class Streaming(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.query, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.mean = torch.zeros(16)

    def forward(self, x, cache):
        self.mean = 0.99 * self.mean + 0.01 * x.mean(0)
        x = self.into(x - self.mean)
        seen = cache.update(x)
        weights = (self.query(x)[:, None] @ seen.transpose(1, 2) / 4).softmax(-1)
        return self.head(x + (weights @ seen)[:, 0])


def streams(seed):
    torch.manual_seed(seed)
    model, cache, total = Streaming().eval(), Cache(), 0.0
    with torch.no_grad():
        for _ in range(40):
            total += model(torch.randn(8, 16) + 1, cache).sum().item()
    print(f"sum: {total:.6f}")


def main(name, seed="0"):
    programs = {"images": images, "tokens": tokens, "feedback": feedback, "turns": turns, "streams": streams}
    programs[name](int(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
