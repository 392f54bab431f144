"""A model's call in parts of its batch: where the samples are, whether parts make up the whole, chance, statistics."""
