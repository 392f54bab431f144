import argparse
import os
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
from torch.utils.data import Dataset  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)


class ParityDataset(Dataset):
    """Does token 5 come before token 6?"""

    def __init__(self, size, seq_len=12, vocab=20, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(7, vocab, (size, seq_len), generator=g)
        self.labels = torch.randint(0, 2, (size,), generator=g)
        for i in range(size):
            a, b = sorted(torch.randperm(seq_len, generator=g)[:2].tolist())
            first, second = (5, 6) if self.labels[i] == 1 else (6, 5)
            self.ids[i, a], self.ids[i, b] = first, second

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i],
            "attention_mask": torch.ones_like(self.ids[i]),
            "labels": self.labels[i],
        }


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    set_seed(42)
    config = BertConfig(vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=16, num_labels=2)
    model = BertForSequenceClassification(config)

    with tempfile.TemporaryDirectory() as out:
        training_args = TrainingArguments(
            output_dir=out,
            max_steps=args.steps,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            warmup_steps=3,
            weight_decay=0.01,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=42,
        )
        trainer = Trainer(model=model, args=training_args, train_dataset=ParityDataset(160),
                          eval_dataset=ParityDataset(64, seed=1), compute_metrics=compute_metrics)
        trainer.remove_callback(PrinterCallback)  # its lines have timings in them
        result = trainer.train()
        metrics = trainer.evaluate()
    print(f"global step {result.global_step}")
    print(f"final train loss {result.training_loss:.8f}")
    print(f"eval loss {metrics['eval_loss']:.8f} accuracy {metrics['eval_accuracy']:.4f}")


if __name__ == "__main__":
    main()
