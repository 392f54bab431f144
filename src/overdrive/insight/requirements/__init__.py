"""A program's needs: memory by part, and its step time on other machines."""
