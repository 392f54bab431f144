"""Batches of cached samples that a thread gathers early, and hands out only if the program asks for them next."""
