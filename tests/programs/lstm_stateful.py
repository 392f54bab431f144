# Word-level LM on a toy corpus, truncated BPTT: the hidden state goes from one
# batch to the next.
import argparse
import math
import random

import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description='toy RNN language model')
parser.add_argument('--emsize', type=int, default=24)
parser.add_argument('--nhid', type=int, default=32)
parser.add_argument('--nlayers', type=int, default=2)
parser.add_argument('--lr', type=float, default=0.01)
parser.add_argument('--clip', type=float, default=1.0)
parser.add_argument('--epochs', type=int, default=2)
parser.add_argument('--batch_size', type=int, default=8, metavar='N')
parser.add_argument('--bptt', type=int, default=12)
parser.add_argument('--dropout', type=float, default=0.1)
parser.add_argument('--seed', type=int, default=1111)
args = parser.parse_args()

random.seed(args.seed)
torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Dictionary(object):
    def __init__(self):
        self.word2idx = {}
        self.idx2word = []

    def add_word(self, word):
        if word not in self.word2idx:
            self.idx2word.append(word)
            self.word2idx[word] = len(self.idx2word) - 1
        return self.word2idx[word]

    def __len__(self):
        return len(self.idx2word)


class Corpus(object):
    subjects = ['the cat', 'a dog', 'my neighbour', 'the old man', 'one bird']
    verbs = ['sees', 'follows', 'hears', 'likes']
    objects = ['the red house', 'a small tree', 'the river', 'some music']

    def __init__(self):
        self.dictionary = Dictionary()
        self.train = self.tokenize(420)
        self.valid = self.tokenize(60)

    def tokenize(self, n):
        ids = []
        for _ in range(n):
            line = ' '.join([random.choice(self.subjects), random.choice(self.verbs),
                             random.choice(self.objects)])
            for word in line.split() + ['<eos>']:
                ids.append(self.dictionary.add_word(word))
        return torch.tensor(ids, dtype=torch.int64)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout=0.5):
        super(RNNModel, self).__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.init_weights()
        self.nhid = nhid
        self.nlayers = nlayers

    def init_weights(self):
        initrange = 0.1
        nn.init.uniform_(self.encoder.weight, -initrange, initrange)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -initrange, initrange)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output)
        decoded = decoded.view(-1, self.ntoken)
        return decoded, hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid),
                weight.new_zeros(self.nlayers, bsz, self.nhid))


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    data = data.view(bsz, -1).t().contiguous()
    return data.to(device)


def repackage_hidden(h):
    """Wraps hidden states in new Tensors, to detach them from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    else:
        return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    data = source[i:i+seq_len]
    target = source[i+1:i+1+seq_len].view(-1)
    return data, target


corpus = Corpus()
train_data = batchify(corpus.train, args.batch_size)
val_data = batchify(corpus.valid, 4)
ntokens = len(corpus.dictionary)
model = RNNModel(ntokens, args.emsize, args.nhid, args.nlayers, args.dropout).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0)


def evaluate(data_source):
    model.eval()
    total_loss = 0.
    hidden = model.init_hidden(4)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, args.bptt):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train():
    model.train()
    total_loss = 0.
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        # Starting each batch, we detach the hidden state from how it was
        # previously produced.
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        # `clip_grad_norm` helps prevent the exploding gradient problem in RNNs / LSTMs.
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()

        total_loss += loss.item()
        if batch % 10 == 0 and batch > 0:
            cur_loss = total_loss / 10
            print('| epoch {:3d} | {:3d} batches | lr {:.5f} | loss {:.6f} | ppl {:8.2f}'.format(
                epoch, batch, optimizer.param_groups[0]['lr'], cur_loss, math.exp(cur_loss)))
            total_loss = 0


for epoch in range(1, args.epochs+1):
    train()
    val_loss = evaluate(val_data)
    print('-' * 60)
    print('| end of epoch {:3d} | valid loss {:.6f} | valid ppl {:8.4f}'.format(
        epoch, val_loss, math.exp(val_loss)))
    print('-' * 60)
    scheduler.step(val_loss)
