"""Batches and samples that are on the GPU before the program asks for them there."""
