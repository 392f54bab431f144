"""What a program does with its time, and what it would like of its hardware."""
