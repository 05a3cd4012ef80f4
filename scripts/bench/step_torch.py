#!/usr/bin/env python3
"""The peer of `k25 bench step`: the quickstart's model and step in PyTorch eager on the CPU.

Same sizes, batch cut, optimizer, clipping and precision, on random tokens of one document a sequence. One process runs
the whole batch on --threads threads; ours runs it on as many ranks.

  scripts/bench/step_torch.py --threads 1
  scripts/bench/step_torch.py --threads 2
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.gain, 1e-6)


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a, self.e = a, a.hidden // a.heads
        self.norm1, self.norm2 = Norm(a.hidden), Norm(a.hidden)
        self.qkv = nn.Linear(a.hidden, (a.heads + 2 * a.kv_heads) * self.e, bias=False)
        self.out = nn.Linear(a.heads * self.e, a.hidden, bias=False)
        self.gate_up = nn.Linear(a.hidden, 2 * a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.hidden, bias=False)

    def rope(self, x, cos, sin):
        h = self.e // 2
        p, q = x[..., :h], x[..., h:]
        return torch.cat([p * cos - q * sin, q * cos + p * sin], dim=-1)

    def forward(self, x, cos, sin):
        a, e = self.a, self.e
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([a.heads * e, a.kv_heads * e, a.kv_heads * e], dim=-1)
        q = self.rope(q.view(b, t, a.heads, e).transpose(1, 2), cos, sin)
        k = self.rope(k.view(b, t, a.kv_heads, e).transpose(1, 2), cos, sin)
        v = v.view(b, t, a.kv_heads, e).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, a.heads * e))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocab, a.hidden)
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.norm = Norm(a.hidden)
        self.head = nn.Linear(a.hidden, a.vocab, bias=False)
        if a.tied:
            self.head.weight = self.embedding.weight
        e = a.hidden // a.heads
        frequency = 10000.0 ** (-2.0 * torch.arange(e // 2) / e)
        angle = torch.arange(a.sequence)[:, None] * frequency[None, :]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten(), reduction="sum")


def main():
    p = argparse.ArgumentParser()
    for name, default in dict(layers=4, hidden=128, heads=4, kv_heads=2, ffn=352, vocab=1000, sequence=256, batch=16,
                              micro_batch=4, threads=1, steps=20, warmup=3).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    a = p.parse_args()
    a.tied = True  # as in configs/quickstart.yaml
    torch.set_num_threads(a.threads)
    torch.manual_seed(7)
    model = Model(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(a.vocab, (a.batch, a.sequence + 1))
    times = []
    for step in range(a.warmup + a.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        total = a.batch * a.sequence
        for i in range(0, a.batch, a.micro_batch):
            part = tokens[i:i + a.micro_batch]
            (model(part[:, :-1], part[:, 1:]) / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= a.warmup:
            times.append(1e3 * (time.perf_counter() - start))
    print(f"torch {torch.__version__} threads={a.threads} tokens={total} median_ms={statistics.median(times):.2f} "
          f"min_ms={min(times):.2f} max_ms={max(times):.2f}")


if __name__ == "__main__":
    main()
