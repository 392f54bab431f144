"""Inside the trial: what the program calls its model with, and what is made of it at the end."""
