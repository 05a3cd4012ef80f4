#!/usr/bin/env python3
"""Writes tests/golden/moe.json: output and all gradients of mixture-of-experts layers, computed by PyTorch in fp64.

The layers are written here from their formulas with plain tensor operations, independent of the C++ code.
Parameters and inputs come from a small integer hash that the test evaluates too, so only results are stored.
With --transformers the layers without latent projections are compared with the modules of kimi_linear and
deepseek_v3 first (their router computes in fp32, hence to 1e-5).

  pip install torch==2.13.0 && scripts/golden/moe_golden.py
  pip install torch==2.13.0 transformers==5.17.0 && scripts/golden/moe_golden.py --transformers
"""
import json
import math
import pathlib
import sys

import torch

from hashed import hashed

EPS = 1e-6
# Tokens, hidden, experts, choices, inner width of an expert and of the shared one, latent width (0: none).
BASE = {"tokens": 13, "hidden": 6, "experts": 8, "top_k": 3, "ffn": 4, "shared_ffn": 7, "latent": 0, "groups": 1,
        "top_groups": 1, "normalize": True, "scale": 1.0, "balance": 0.0}
CASES = {
    "kimi_linear": BASE | {"scale": 2.446},
    "deepseek_v3": BASE | {"experts": 12, "groups": 4, "top_groups": 2, "top_k": 4, "scale": 2.5, "balance": 0.01},
    "latent": BASE | {"latent": 5, "shared_ffn": 14, "balance": 0.1},
    "unnormalized": BASE | {"normalize": False, "scale": 1.5, "shared_ffn": 0},
    "all_chosen": BASE | {"experts": 3, "tokens": 4},
    "one_expert": BASE | {"experts": 1, "top_k": 1, "tokens": 4},
}


def tensors(c):
    """Name -> (shape, factor, shift): values are shift + factor * hash, the salt is the place in this list."""
    n, d, e, f = c["tokens"], c["hidden"], c["experts"], c["ffn"]
    w = c["latent"] or d
    shapes = {"x": ((n, d), 2, 0), "dy": ((n, d), 1, 0), "router": ((e, d), 1, 0), "bias": ((e,), 0.4, 0),
              "gate_up": ((e, 2 * f, w), 2, 0), "down": ((e, w, f), 2, 0)}
    if c["shared_ffn"]:
        shapes |= {"shared_gate_up": ((2 * c["shared_ffn"], d), 1, 0), "shared_down": ((d, c["shared_ffn"]), 1, 0)}
    if c["latent"]:
        shapes |= {"latent_down": ((w, d), 1, 0), "latent_norm": ((w,), 0.4, 1), "latent_up": ((d, w), 1, 0)}
    return shapes


def swiglu(x, gate_up, down):
    half = gate_up.shape[0] // 2
    gate, up = x @ gate_up[:half].T, x @ gate_up[half:].T
    return (gate * torch.sigmoid(gate) * up) @ down.T


def route(c, logits, bias):
    """scores, and for each token its experts in ascending order with their weights. Plain loops, no top-k."""
    scores = torch.sigmoid(logits)
    size = c["experts"] // c["groups"]
    index, weight = [], []
    for s in scores:
        choice = [float(v) for v in (s + bias).detach()]
        groups = sorted(range(c["groups"]), key=lambda g: (-sum(sorted(choice[g * size:(g + 1) * size])[-2:]), g))
        allowed = [i for g in groups[:c["top_groups"]] for i in range(g * size, (g + 1) * size)]
        chosen = sorted(sorted(allowed, key=lambda i: (-choice[i], i))[:c["top_k"]])
        picked = s[chosen]
        if c["normalize"]:
            picked = picked / (picked.sum() + 1e-20)
        index.append(chosen)
        weight.append(picked * c["scale"])
    return scores, index, torch.stack(weight)


def forward(c, p):
    scores, index, weight = route(c, p["x"] @ p["router"].T, p["bias"])
    rows = p["x"] @ p["latent_down"].T if c["latent"] else p["x"]
    out = []
    for n, chosen in enumerate(index):
        y = torch.zeros(rows.shape[1], dtype=torch.float64)
        for k, e in enumerate(chosen):
            y = y + weight[n, k] * swiglu(rows[n], p["gate_up"][e], p["down"][e])
        out.append(y)
    y = torch.stack(out)
    if c["latent"]:  # the norm needs the complete sum: after the combine
        y = y / torch.sqrt((y * y).mean(-1, keepdim=True) + EPS) * p["latent_norm"]
        y = y @ p["latent_up"].T
    if c["shared_ffn"]:
        y = y + swiglu(p["x"], p["shared_gate_up"], p["shared_down"])
    fraction = torch.zeros(c["experts"], dtype=torch.float64)
    for chosen in index:
        fraction[chosen] += c["experts"] / (c["top_k"] * c["tokens"])
    balance = c["balance"] * ((scores / scores.sum(-1, keepdim=True)) * fraction).sum()
    return y, index, weight, balance


def run(c):
    p = {}
    for salt, (name, (shape, factor, shift)) in enumerate(tensors(c).items()):
        p[name] = (shift + factor * hashed(math.prod(shape), salt).reshape(shape)).requires_grad_(name not in ("dy", "bias"))
    y, index, weight, balance = forward(c, p)
    ((y * p["dy"]).sum() + balance).backward()

    def plain(t):
        return [float(f"{v:.12g}") for v in t.detach().flatten().tolist()]

    return p, y, {"config": c, "y": plain(y), "index": [e for chosen in index for e in chosen], "weight": plain(weight),
                  "balance": balance.item(),
                  "tensors": [{"name": name, "salt": salt, "shape": shape, "factor": factor, "shift": shift}
                              | ({"gradient": plain(p[name].grad)} if p[name].grad is not None else {})
                              for salt, (name, (shape, factor, shift)) in enumerate(tensors(c).items())]}


def compare_with_transformers(c, p, y):
    """Largest difference between our y and those of the two public modules."""
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
    from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearMoE
    worst = 0.0
    for config_type, module_type in ((DeepseekV3Config, DeepseekV3MoE), (KimiLinearConfig, KimiLinearMoE)):
        config = config_type(hidden_size=c["hidden"], moe_intermediate_size=c["ffn"], num_local_experts=c["experts"],
                             num_experts_per_tok=c["top_k"], n_group=c["groups"], topk_group=c["top_groups"],
                             norm_topk_prob=c["normalize"], routed_scaling_factor=c["scale"], n_shared_experts=1)
        config._experts_implementation = "eager"
        module = module_type(config).double()
        half = c["shared_ffn"]
        shared = module.shared_experts
        shared.gate_proj = torch.nn.Linear(c["hidden"], half, bias=False).double()
        shared.up_proj = torch.nn.Linear(c["hidden"], half, bias=False).double()
        shared.down_proj = torch.nn.Linear(half, c["hidden"], bias=False).double()
        with torch.no_grad():
            module.gate.weight.copy_(p["router"])
            module.gate.e_score_correction_bias.copy_(p["bias"])
            module.experts.gate_up_proj.copy_(p["gate_up"])
            module.experts.down_proj.copy_(p["down"])
            shared.gate_proj.weight.copy_(p["shared_gate_up"][:half])
            shared.up_proj.weight.copy_(p["shared_gate_up"][half:])
            shared.down_proj.weight.copy_(p["shared_down"])
            theirs = module(p["x"][None])[0]
        worst = max(worst, float((theirs - y).detach().abs().max()))
    return worst


def main():
    results = {}
    for name, c in CASES.items():
        p, y, results[name] = run(c)
        # Their group score needs two experts in a group.
        if "--transformers" in sys.argv and not c["latent"] and c["shared_ffn"] and c["experts"] // c["groups"] > 1:
            worst = compare_with_transformers(c, p, y)
            print(f"{name}: {worst:.2e} from transformers")
            if not worst < 1e-5:
                sys.exit(f"{name} differs from transformers")
    path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "moe.json"
    path.write_text(json.dumps(results) + "\n")
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
