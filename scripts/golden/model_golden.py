#!/usr/bin/env python3
"""Writes tests/golden/model_*.json: loss and all gradients of a 2-layer model, computed by PyTorch in fp64.

The model is written here from its formulas with plain tensor operations, independent of the C++ code. Parameters
and tokens come from a small integer hash that the test evaluates too, so only results are stored.

  pip install torch==2.13.0 && scripts/golden/model_golden.py
"""
import json
import pathlib

import torch

from hashed import hashed

B, T, D, H, K, E, F, V, L = 2, 12, 16, 4, 2, 4, 24, 29, 2
EPS, THETA = 1e-6, 10000.0
# Documents as (begin, end) in each sequence; labels of the last token of each document are ignored.
DOCUMENTS = [[(0, 5), (5, 6), (6, 12)], [(0, 12)]]
IGNORED = {(0, 2), (1, 7)}  # further positions without a label


def parameters(tied):
    shapes = {"embedding": (V, D)}
    for i in range(L):
        shapes |= {f"layers.{i}.attention.qkv": ((H + 2 * K) * E, D), f"layers.{i}.attention.out": (D, H * E),
                   f"layers.{i}.ffn.gate_up": (2 * F, D), f"layers.{i}.ffn.down": (D, F),
                   f"layers.{i}.mixer_norm": (D,), f"layers.{i}.ffn_norm": (D,)}
    if not tied:
        shapes["head"] = (V, D)
    shapes["final_norm"] = (D,)
    result = {}
    for salt, (name, shape) in enumerate(shapes.items()):
        count = 1
        for n in shape:
            count *= n
        values = hashed(count, salt).reshape(shape)
        result[name] = ((1.0 + 0.4 * values) if name.endswith("norm") else values).requires_grad_()
    return result


def rmsnorm(x, gain):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * gain


def rope(x, position):  # x: [T, heads, E]
    half = E // 2
    frequency = THETA ** (-2.0 * torch.arange(half, dtype=torch.float64) / E)
    angle = position[:, None].double() * frequency[None, :]
    cos, sin = angle.cos()[:, None, :], angle.sin()[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attention(x, p, prefix, document, position):  # one sequence, x: [T, D]
    qkv = x @ p[prefix + "attention.qkv"].T
    q = rope(qkv[:, :H * E].reshape(T, H, E), position)
    k = rope(qkv[:, H * E:(H + K) * E].reshape(T, K, E), position)
    v = qkv[:, (H + K) * E:].reshape(T, K, E)
    i, j = torch.arange(T)[:, None], torch.arange(T)[None, :]
    visible = (j <= i) & (document[:, None] == document[None, :])
    out = []
    for h in range(H):
        kv = h // (H // K)
        scores = (q[:, h] @ k[:, kv].T) / E**0.5
        out.append(torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1) @ v[:, kv])
    return torch.cat(out, dim=-1) @ p[prefix + "attention.out"].T


def ffn(x, p, prefix):
    gate_up = x @ p[prefix + "ffn.gate_up"].T
    gate, up = gate_up[:, :F], gate_up[:, F:]
    return (gate * torch.sigmoid(gate) * up) @ p[prefix + "ffn.down"].T


def run(tied):
    p = parameters(tied)
    loss, labels_used = torch.zeros((), dtype=torch.float64), 0
    for b in range(B):
        tokens = torch.tensor([(7 * t + 11 * b + t * t) % V for t in range(T)])
        document, position = torch.zeros(T, dtype=torch.long), torch.zeros(T, dtype=torch.long)
        last = set()
        for n, (begin, end) in enumerate(DOCUMENTS[b]):
            document[begin:end] = n
            position[begin:end] = torch.arange(end - begin)
            last.add(end - 1)
        h = p["embedding"][tokens]
        for i in range(L):
            prefix = f"layers.{i}."
            h = h + attention(rmsnorm(h, p[prefix + "mixer_norm"]), p, prefix, document, position)
            h = h + ffn(rmsnorm(h, p[prefix + "ffn_norm"]), p, prefix)
        table = p["embedding"] if tied else p["head"]
        logits = rmsnorm(h, p["final_norm"]) @ table.T
        for t in range(T):
            if t in last or (b, t) in IGNORED:
                continue
            loss = loss - torch.log_softmax(logits[t], dim=-1)[tokens[t + 1]]
            labels_used += 1
    loss.backward()
    return {"loss": loss.item(), "labels": labels_used,
            "parameters": [{"name": name, "salt": salt, "gradient": [float(f"{g:.12g}") for g in t.grad.flatten().tolist()]}
                           for salt, (name, t) in enumerate(p.items())]}


def main():
    folder = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
    for tied in (False, True):
        path = folder / f"model_{'tied' if tied else 'untied'}.json"
        path.write_text(json.dumps(run(tied)) + "\n")
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
