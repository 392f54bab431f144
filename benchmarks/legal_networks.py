"""Trains one of eight networks on noisy patterns: python legal_networks.py NETWORK SEED.

Those of images are torchvision's and timm's, the language models Transformers'; nobody of Overdrive wrote them. Made
smaller by their own arguments where these allow it; nothing is downloaded. Without dropout: compiled code draws its
masks from another stream, so that later batches differ, and no kernel does the same sums.
"""

import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CLASSES, WORDS, LENGTH = 5, 200, 24


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, 48)
        self.lstm = torch.nn.LSTM(48, 64, 2, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(128, CLASSES)

    def forward(self, words):
        return self.head(self.lstm(self.embedding(words))[0].mean(1))


def made(network):
    """The model, and whether it takes words."""
    if network == "lstm":
        return Tagger(), True
    if network in ("bert", "gpt2"):
        import transformers

        sizes = {"vocab_size": WORDS, "num_labels": CLASSES}
        if network == "bert":
            config = transformers.BertConfig(
                hidden_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                intermediate_size=128,
                attention_probs_dropout_prob=0.0,
                **sizes,
            )
            return transformers.BertForSequenceClassification(config), True
        sizes |= {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": LENGTH, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(pad_token_id=0, **sizes)
        return transformers.GPT2ForSequenceClassification(config), True
    if network == "convnext_atto":
        import timm

        return timm.create_model(network, num_classes=CLASSES), False
    import torchvision

    return torchvision.models.get_model(network, num_classes=CLASSES), False


NETWORKS = (
    *("resnet18", "densenet121", "mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_atto"),
    *("bert", "gpt2", "lstm"),
)


def data(words, seed):
    chance = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (256,), generator=chance)
    if words:
        return torch.randint(1, WORDS, (256, LENGTH), generator=chance).where(
            torch.arange(LENGTH) % 3 > 0, labels[:, None] + 1
        ), labels
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return 0.5 * patterns[labels] + torch.randn(256, 3, 32, 32, generator=chance), labels


def main(network, seed):
    torch.manual_seed(int(seed))
    model, words = made(network)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=1e-3)
        if words
        else torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    )
    loader = DataLoader(TensorDataset(*data(words, int(seed))), batch_size=16, shuffle=True)
    for epoch in range(100):
        for x, y in loader:
            answer = model(x)
            loss = F.cross_entropy(getattr(answer, "logits", answer), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
