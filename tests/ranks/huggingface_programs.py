"""Tiny models of Hugging Face's transformers, trained by name: losses in fp64, norms, an evaluation, their states."""

from __future__ import annotations

import sys

import torch
from tensor_programs import digest
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

WIDTH = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert() -> nn.Module:
    return BertForSequenceClassification(
        BertConfig(**WIDTH, intermediate_size=64, max_position_embeddings=16, num_labels=3)
    )


def llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(**WIDTH, intermediate_size=64, max_position_embeddings=16, num_key_value_heads=2)
    )


def main(name: str, cache: str = "") -> None:
    """`cache`: with it the program looks at what its model has kept of the last batch."""
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    model = bert() if name == "bert" else llama()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = [torch.randint(50, (4, 8)) for _ in range(5)]
    for step, words in enumerate(batches):
        optimizer.zero_grad()
        labels = words[:, 0] % 3 if name == "bert" else words
        made = model(input_ids=words, attention_mask=torch.ones_like(words), labels=labels)
        made.loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        print(name, step, repr(made.loss.item()), repr(norm.item()))
    if cache:
        keys = made.past_key_values.layers[1].keys.detach()
        print(name, "keys", made.past_key_values.get_seq_length(), tuple(keys.shape), repr(keys.square().sum().item()))
    model.eval()
    with torch.no_grad():
        made = model(input_ids=batches[0], attention_mask=torch.ones_like(batches[0])).logits
        print(name, "made", repr(float(made.sum())), repr(float(made.square().sum())))
        if name == "llama":
            print(name, "words", model.generate(batches[0][:1, :4], max_new_tokens=4, do_sample=False).tolist())
    print(name, "states", repr(digest(model.state_dict())), repr(digest(optimizer.state_dict()["state"])))


if __name__ == "__main__":
    main(*sys.argv[1:])
