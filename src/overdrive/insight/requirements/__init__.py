"""What a program needs of a machine: memory by part, and the time of a step on machines that are not here."""
