from torch import nn


class Adder(nn.Module):
    def __init__(self, d_model=16, heads=2, layers=1):
        super().__init__()
        self.inp = nn.Linear(2, d_model)
        layer = nn.TransformerEncoderLayer(d_model, heads, dim_feedforward=32, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, layers)
        self.out = nn.Linear(d_model, 1)

    def forward(self, x):
        return self.out(self.enc(self.inp(x)).mean(dim=1)).squeeze(-1)
