"""Cross-entropy of classes on a GPU: the Triton source, the operator, and how it is compared with torch."""
