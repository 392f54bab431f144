"""What answers a model's call in the model's place: an engine of another library, built from that very model."""
