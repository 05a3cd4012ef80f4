#!/usr/bin/env python3
"""Writes tests/golden/layers_*.json: loss and all gradients of a 4-layer model with kda and gqa mixers and swiglu and moe
feed-forwards, and of 2-layer models with mla mixers, computed by PyTorch in fp64.

The model is written here from its formulas with plain loops over tokens and experts, independent of the C++ code.
Parameters and tokens come from a small integer hash that the test evaluates too, so only results are stored.

  pip install torch==2.13.0 && scripts/golden/layers_golden.py
"""
import json
import pathlib

import torch

import model_golden as plain
from hashed import hashed

B, T, D, V = plain.B, plain.T, plain.D, plain.V
KINDS = ["kda/swiglu", "kda/moe", "kda/moe", "gqa/moe"]  # pattern [kda/moe x 3, gqa/moe], one dense layer first
H, K, HV, R = 2, 4, 6, 3  # heads, key and value width, gate rank
E, TOP, EF = 5, 2, 8  # experts, choices, inner width
# Large, because a document's first output is v times q k, whose norm is badly conditioned where q k is nearly zero.
EPS = plain.EPS = 0.05
VARIANTS = {
    # softplus gate, shared experts
    "shared": {"gate": "softplus", "beta": 1, "shared": 2, "latent": 0, "renormalize": True, "scale": 2.446, "balance": 0},
    # bounded gate, negative eigenvalues, latent experts, weights as they are, balance loss
    "latent": {"gate": "lower_bound", "beta": 2, "shared": 0, "latent": 6, "renormalize": False, "scale": 1.5, "balance": 0.3},
}
LOWER_BOUND = -2.0
MLA_EPS = 0.03  # of the norms within latent attention
# Two mla/swiglu layers: own, shared and value width of a head, ranks of keys and queries, whether the shared part turns.
MLA_VARIANTS = {
    "mla": {"P": 4, "R": 0, "V": 3, "kv": 6, "q": 0, "rope": False},
    "mla_rope": {"P": 3, "R": 4, "V": 5, "kv": 7, "q": 6, "rope": True},
    "mla_shared": {"P": 4, "R": 3, "V": 4, "kv": 5, "q": 0, "rope": False},  # as in Kimi Linear
}


def kinds_of(variant):
    return ["mla/swiglu"] * 2 if "kv" in variant else KINDS


def shapes_of(variant):
    shapes = {"embedding": (V, D)}
    for i, kind in enumerate(kinds_of(variant)):
        mixer, ffn = kind.split("/")
        n = f"layers.{i}."
        if mixer == "gqa":
            shapes |= {n + "attention.qkv": ((plain.H + 2 * plain.K) * plain.E, D), n + "attention.out": (D, plain.H * plain.E)}
        elif mixer == "mla":
            m = variant
            queries = plain.H * (m["P"] + m["R"])
            shapes |= {n + "mla.in": ((m["q"] or queries) + m["kv"] + m["R"], D),
                       n + "mla.kv_b": (plain.H * (m["P"] + m["V"]), m["kv"]), n + "mla.out": (D, plain.H * m["V"]),
                       n + "mla.kv_norm": (m["kv"],)}
            if m["q"]:
                shapes |= {n + "mla.q_b": (queries, m["q"]), n + "mla.q_norm": (m["q"],)}
        else:
            channels = H * (2 * K + HV)
            shapes |= {n + "kda.in": (channels + 2 * R + H, D), n + "kda.f_b": (H * K, R), n + "kda.g_b": (H * HV, R),
                       n + "kda.out": (D, H * HV), n + "kda.conv": (channels, 4), n + "kda.a_log": (H,),
                       n + "kda.dt_bias": (H, K), n + "kda.out_norm": (HV,)}
        if ffn == "swiglu":
            shapes |= {n + "ffn.gate_up": (2 * plain.F, D), n + "ffn.down": (D, plain.F)}
        else:
            width = variant["latent"] or D
            shapes |= {n + "moe.router": (E, D), n + "moe.experts.gate_up": (E * 2 * EF, width),
                       n + "moe.experts.down": (E * width, EF), n + "moe.bias": (E,)}
            if variant["latent"]:
                shapes |= {n + "moe.latent_down": (width, D), n + "moe.latent_up": (D, width), n + "moe.latent_norm": (width,)}
            if variant["shared"]:
                shapes |= {n + "moe.shared.gate_up": (2 * variant["shared"] * EF, D),
                           n + "moe.shared.down": (D, variant["shared"] * EF)}
        shapes |= {n + "mixer_norm": (D,), n + "ffn_norm": (D,)}
    shapes |= {"head": (V, D), "final_norm": (D,)}
    return shapes


def parameters(variant):
    result = {}
    for salt, (name, shape) in enumerate(shapes_of(variant).items()):
        values = hashed(int(torch.tensor(shape).prod()), salt).reshape(shape)
        if name.endswith("norm"):
            values = 1.0 + 0.4 * values
        if name.endswith("conv"):  # the same for the norm of q and k
            values = 4.0 * values
        result[name] = values.requires_grad_()
    return result


def silu(x):
    return x * torch.sigmoid(x)


def conv(x, weight, begin, end):  # x: [T, C]; the document [begin, end)
    rows = []
    for t in range(begin, end):
        z = sum(weight[:, i] * x[t - 3 + i] for i in range(4) if t - 3 + i >= begin)
        rows.append(silu(z))
    return torch.stack(rows)


def gate_of(f, a_log, dt_bias, variant):  # [K] of one head and token
    if variant["gate"] == "softplus":
        return -torch.exp(a_log) * torch.nn.functional.softplus(f + dt_bias, threshold=1e9)
    return LOWER_BOUND * torch.sigmoid(torch.exp(a_log) * (f + dt_bias))


def kda(x, p, n, documents, variant):  # one sequence, x: [T, D]
    z = x @ p[n + "kda.in"].T
    channels = H * (2 * K + HV)
    f = z[:, channels:channels + R] @ p[n + "kda.f_b"].T
    gate = z[:, channels + R:channels + 2 * R] @ p[n + "kda.g_b"].T
    beta = variant["beta"] * torch.sigmoid(z[:, channels + 2 * R:])
    out = []
    for begin, end in documents:
        qkv = conv(z[:, :channels], p[n + "kda.conv"], begin, end)
        state = [torch.zeros(K, HV, dtype=torch.float64) for _ in range(H)]
        for t in range(begin, end):
            row, heads = qkv[t - begin], []
            for h in range(H):
                q, k = row[h * K:(h + 1) * K], row[H * K + h * K:H * K + (h + 1) * K]
                v = row[2 * H * K + h * HV:2 * H * K + (h + 1) * HV]
                q, k = q / torch.sqrt((q * q).sum() + 1e-6), k / torch.sqrt((k * k).sum() + 1e-6)
                g = gate_of(f[t, h * K:(h + 1) * K], p[n + "kda.a_log"][h], p[n + "kda.dt_bias"][h], variant)
                decayed = torch.exp(g)[:, None] * state[h]
                update = beta[t, h] * (v - decayed.T @ k)
                state[h] = decayed + torch.outer(k, update)
                o = state[h].T @ q / K**0.5
                o = o / torch.sqrt((o * o).mean() + EPS) * p[n + "kda.out_norm"]
                heads.append(o * torch.sigmoid(gate[t, h * HV:(h + 1) * HV]))
            out.append(torch.cat(heads))
    return torch.stack(out) @ p[n + "kda.out"].T


def turned(x, position):  # halves of the last dimension as pairs
    half = x.shape[-1] // 2
    out = x.clone()
    for t in range(T):
        for i in range(half):
            angle = position[t].double() * plain.THETA ** (-2.0 * i / (2 * half))
            c, s, a, b = torch.cos(angle), torch.sin(angle), x[t, ..., i], x[t, ..., half + i]
            out[t, ..., i], out[t, ..., half + i] = a * c - b * s, b * c + a * s
    return out


def mla(x, p, n, documents, position, m):  # one sequence, x: [T, D]
    def normed(row, gain):
        return row / torch.sqrt((row * row).mean(-1, keepdim=True) + MLA_EPS) * p[n + gain]

    z = x @ p[n + "mla.in"].T
    first = m["q"] or plain.H * (m["P"] + m["R"])
    q, c, shared = z[:, :first], z[:, first:first + m["kv"]], z[:, first + m["kv"]:]
    if m["q"]:
        q = normed(q, "mla.q_norm") @ p[n + "mla.q_b"].T
    q = q.reshape(T, plain.H, -1)
    kv = (normed(c, "mla.kv_norm") @ p[n + "mla.kv_b"].T).reshape(T, plain.H, -1)
    own_q, shared_q = q[..., :m["P"]], q[..., m["P"]:]
    if m["rope"]:
        shared_q, shared = turned(shared_q, position), turned(shared, position)
    out = []
    for begin, end in documents:
        for t in range(begin, end):
            heads = []
            for h in range(plain.H):
                score = own_q[t, h] @ kv[begin:t + 1, h, :m["P"]].T + shared_q[t, h] @ shared[begin:t + 1].T
                weights = torch.softmax(score / (m["P"] + m["R"])**0.5, dim=-1)
                heads.append(weights @ kv[begin:t + 1, h, m["P"]:])
            out.append(torch.cat(heads))
    return torch.stack(out) @ p[n + "mla.out"].T


def swiglu(x, gate_up, down):
    gate, up = (gate_up @ x).chunk(2)
    return down @ (silu(gate) * up)


def moe(x, p, n, variant, counts):
    """The output and the balance loss of one sequence."""
    width = variant["latent"] or D
    out, shares, chosen_here = [], [], torch.zeros(E, dtype=torch.float64)
    for row in x:
        scores = torch.sigmoid(p[n + "moe.router"] @ row)
        chosen = torch.sort(torch.topk(scores + p[n + "moe.bias"].detach(), TOP).indices).values
        shares.append(scores / (scores.sum() + 1e-20))
        weights = scores[chosen]
        if variant["renormalize"]:
            weights = weights / (weights.sum() + 1e-20)
        z = p[n + "moe.latent_down"] @ row if variant["latent"] else row
        total = torch.zeros(width, dtype=torch.float64)
        for weight, e in zip(variant["scale"] * weights, chosen.tolist()):
            counts[e] += 1
            chosen_here[e] += 1
            total = total + weight * swiglu(z, p[n + "moe.experts.gate_up"][2 * e * EF:2 * (e + 1) * EF],
                                            p[n + "moe.experts.down"][e * width:(e + 1) * width])
        if variant["latent"]:
            total = p[n + "moe.latent_up"] @ plain.rmsnorm(total, p[n + "moe.latent_norm"])
        if variant["shared"]:
            total = total + swiglu(row, p[n + "moe.shared.gate_up"], p[n + "moe.shared.down"])
        out.append(total)
    fractions = chosen_here * E / (TOP * T)
    return torch.stack(out), variant["balance"] * sum((fractions * share).sum() for share in shares)


def run(variant):
    p = parameters(variant)
    kinds = kinds_of(variant)
    counts = [[0] * E for _ in kinds]
    loss, balance, labels_used = torch.zeros((), dtype=torch.float64), 0.0, 0
    for b in range(B):
        tokens = torch.tensor([(7 * t + 11 * b + t * t) % V for t in range(T)])
        document, position = torch.zeros(T, dtype=torch.long), torch.zeros(T, dtype=torch.long)
        last = set()
        for i, (begin, end) in enumerate(plain.DOCUMENTS[b]):
            document[begin:end] = i
            position[begin:end] = torch.arange(end - begin)
            last.add(end - 1)
        h = p["embedding"][tokens]
        for i, kind in enumerate(kinds):
            mixer, ffn = kind.split("/")
            n = f"layers.{i}."
            y = plain.rmsnorm(h, p[n + "mixer_norm"])
            if mixer == "gqa":
                h = h + plain.attention(y, p, n, document, position)
            elif mixer == "mla":
                h = h + mla(y, p, n, plain.DOCUMENTS[b], position, variant)
            else:
                h = h + kda(y, p, n, plain.DOCUMENTS[b], variant)
            y = plain.rmsnorm(h, p[n + "ffn_norm"])
            if ffn == "swiglu":
                h = h + plain.ffn(y, p, n)
            else:
                update, uneven = moe(y, p, n, variant, counts[i])
                h, balance = h + update, balance + uneven
        logits = plain.rmsnorm(h, p["final_norm"]) @ p["head"].T
        for t in range(T):
            if t in last or (b, t) in plain.IGNORED:
                continue
            loss = loss - torch.log_softmax(logits[t], dim=-1)[tokens[t + 1]]
            labels_used += 1
    (loss + balance).backward()
    return {"loss": loss.item(), "labels": labels_used, **({"load": counts} if "shared" in variant else {}),
            "parameters": [{"name": name, "salt": salt,
                            "gradient": [] if t.grad is None else [float(f"{g:.10g}") for g in t.grad.flatten().tolist()]}
                           for salt, (name, t) in enumerate(p.items())]}


def main():
    folder = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
    for name, variant in {**VARIANTS, **MLA_VARIANTS}.items():
        path = folder / f"layers_{name}.json"
        path.write_text(json.dumps(run(variant)) + "\n")
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
