#!/usr/bin/env python3
"""Writes tests/golden/kda.json: a Kimi Delta Attention layer without its projections, computed by PyTorch in fp64.

Convolution, L2 norm, gates, the recurrence as a plain loop over tokens, and the gated norm are written here from their
formulas with plain tensor operations, independent of the C++ code; autograd gives the gradients. Operands come from a
small integer hash that the test evaluates too, so only results are stored.

  pip install torch==2.13.0 && scripts/golden/kda_golden.py
"""
import json
import math
import pathlib

import torch

from hashed import hashed

H, M, K, V = 1, 2, 4, 3
LENGTHS = [3, 67, 0]
T, S = sum(LENGTHS), len(LENGTHS)
LOWER_BOUND = -5.0

# Name -> shape, low, high. The position in this table is the salt of the hash.
OPERANDS = {
    "q": ((T, H * K), -2, 2), "k": ((T, H * K), -2, 2), "v": ((T, M * V), -2, 2),
    "f": ((T, M, K), -4, 2), "b": ((T, M), -2, 4), "e": ((T, M, V), -3, 3),
    "q_weight": ((H * K, 4), -1, 1), "k_weight": ((H * K, 4), -1, 1), "v_weight": ((M * V, 4), -1, 1),
    "a_log": ((M,), -2, 1), "dt_bias": ((M, K), -2, 0), "gain": ((V,), 0.5, 1.5),
    "state": ((S, M, K, V), -1, 1), "q_state": ((S, 3, H * K), -1, 1),
    "w_y": ((T, M, V), -1, 1), "w_state": ((S, M, K, V), -1, 1),
}


def operands():
    result = {}
    for salt, (name, (shape, low, high)) in enumerate(OPERANDS.items()):
        values = (low + high) / 2 + (high - low) * hashed(math.prod(shape), salt).reshape(shape)
        result[name] = values if name.startswith("w_") else values.requires_grad_()
    return result


def convolution(x, weight, history):
    x = torch.cat([history, x])
    z = sum(weight[:, i] * x[i:len(x) - 3 + i] for i in range(4))
    return z * torch.sigmoid(z)


def unit(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def log_decay(kind, p):
    x = p["f"] + p["dt_bias"]
    if kind == "softplus":
        return -torch.exp(p["a_log"])[:, None] * torch.nn.functional.softplus(x, threshold=1e9)
    return LOWER_BOUND * torch.sigmoid(torch.exp(p["a_log"])[:, None] * x if kind == "lower_bound" else x)


def layer(kind, p):
    g, beta = log_decay(kind, p), (2 if kind == "lower_bound" else 1) * torch.sigmoid(p["b"])
    outputs, states, first = [], [], 0
    for s, length in enumerate(LENGTHS):
        here = slice(first, first + length)
        none = torch.zeros(3, M * V, dtype=torch.float64)
        q = unit(convolution(p["q"][here], p["q_weight"], p["q_state"][s]).reshape(length, H, K))
        k = unit(convolution(p["k"][here], p["k_weight"], none[:, :H * K]).reshape(length, H, K))
        v = convolution(p["v"][here], p["v_weight"], none).reshape(length, M, V)
        heads = []
        for m in range(M):
            state, h, rows = p["state"][s, m], m // (M // H), []
            for t in range(length):
                state = torch.exp(g[first + t, m])[:, None] * state
                u = beta[first + t, m] * (v[t, m] - state.T @ k[t, h])
                state = state + torch.outer(k[t, h], u)
                rows.append(K**-0.5 * (state.T @ q[t, h]))
            heads.append(torch.stack(rows) if rows else torch.zeros(0, V, dtype=torch.float64))
            states.append(state)
        outputs.append(torch.stack(heads, dim=1))
        first += length
    o = torch.cat(outputs)
    y = o / torch.sqrt((o * o).mean(-1, keepdim=True) + 1e-5) * p["gain"] * torch.sigmoid(p["e"])
    return y, torch.stack(states).reshape(S, M, K, V)


def numbers(t):
    return [float(f"{x:.12g}") for x in t.detach().flatten().tolist()]


def run(kind):
    p = operands()
    y, state = layer(kind, p)
    ((y * p["w_y"]).sum() + (state * p["w_state"]).sum()).backward()
    return {"kind": kind, "y": numbers(y), "state": numbers(state),
            "gradients": {name: numbers(t.grad) for name, t in p.items() if t.grad is not None}}


def main():
    path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "kda.json"
    cases = [run(kind) for kind in ("softplus", "lower_bound", "lower_bound_without_a")]
    table = [{"name": name, "low": low, "high": high} for name, (_, low, high) in OPERANDS.items()]
    path.write_text(json.dumps({"lengths": LENGTHS, "operands": table, "cases": cases}) + "\n")
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
