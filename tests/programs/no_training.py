"""Checks that the torch install works."""
import sys

import torch

print("checking torch")
torch.manual_seed(0)
a = torch.randn(64, 64)
b = torch.randn(64, 64)
c = a @ b
print("checksum %.6f" % c.abs().sum().item())
if not torch.cuda.is_available() or "--strict" not in sys.argv:
    print("nothing to train here", file=sys.stderr)
    sys.exit(3)
