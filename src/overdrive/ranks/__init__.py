"""One program on N ranks: who they are, how they are started, what they say to each other, what keeps them in step."""
