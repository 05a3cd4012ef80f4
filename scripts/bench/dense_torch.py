#!/usr/bin/env python3
"""The peers of `k25 bench step --config configs/dense-1.3b.yaml`: the same model and step in PyTorch on GPUs.

  scripts/bench/dense_torch.py eager               bf16 weights and moments, one GPU
  scripts/bench/dense_torch.py compile             the same through torch.compile
  torchrun --nproc-per-node N scripts/bench/dense_torch.py fsdp2
                                                   fp32 masters and moments, bf16 compute, fp32 reduction, compiled blocks

Random tokens, one document a sequence, AdamW, clipping to 1. Prints one JSON line, which scripts/bench/dense_table.py reads.
Exit code 2: torch, CUDA or enough GPUs are missing.
"""
import argparse
import json
import os
import statistics
import sys

SIZES = dict(layers=24, hidden=2048, heads=16, kv_heads=8, ffn=5632, vocab=32768, sequence=4096, batch=8)
NAMES = {"eager": "PyTorch eager", "compile": "torch.compile", "fsdp2": "FSDP2"}
NOTES = {"eager": "bf16 weights and moments", "compile": "bf16 weights and moments",
         "fsdp2": "fp32 masters and moments"}


def missing(what):
    print(f"dense_torch: {what}", file=sys.stderr)
    sys.exit(2)


def require_torch():
    try:
        import torch
    except ImportError:
        missing(f"PyTorch is not installed for {sys.executable}; install it there, or give another python")
    if not torch.cuda.is_available():
        missing("PyTorch sees no GPU (torch.cuda.is_available() is false)")
    return torch


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("mode", choices=sorted(NAMES))
    for name, default in {**SIZES, "steps": 20, "warmup": 10}.items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    a = p.parse_args()
    if min(v for k, v in vars(a).items() if k not in ("mode", "warmup")) < 1 or a.warmup < 0:
        p.error("sizes and steps are positive")
    a.tied = False
    return a


def one_gpu(torch, a):
    from step_torch import Model
    with torch.device("cuda"):
        model = Model(a)
    model = model.to(torch.bfloat16)
    return torch.compile(model) if a.mode == "compile" else model


def sharded(torch, a):
    from step_torch import Model
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    with torch.device("cuda"):
        model = Model(a)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def measure(torch, a, model):
    """Milliseconds of each timed step, on the device's clock."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(a.vocab, (a.batch, a.sequence + 1), device="cuda")
    times = []
    for step in range(a.warmup + a.steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        (model(tokens[:, :-1], tokens[:, 1:]) / (a.batch * a.sequence)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        if step >= a.warmup:
            times.append(begin.elapsed_time(end))
    return times


def main():
    a = arguments()
    torch = require_torch()
    rank, gpus = 0, 1
    if a.mode == "fsdp2":
        if "LOCAL_RANK" not in os.environ:
            missing("fsdp2 is started by torchrun --nproc-per-node N")
        import torch.distributed as dist
        rank, gpus = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            missing(f"{local + 1} processes and {torch.cuda.device_count()} GPUs on this host")
        torch.cuda.set_device(local)
        dist.init_process_group("nccl")
    torch.manual_seed(7)
    model = sharded(torch, a) if a.mode == "fsdp2" else one_gpu(torch, a)
    torch.cuda.reset_peak_memory_stats()
    times = measure(torch, a, model)
    ms = statistics.median(times)
    if rank == 0:
        print(json.dumps({"name": NAMES[a.mode], "note": NOTES[a.mode], "gpus": gpus,
                          "tokens": gpus * a.batch * a.sequence, "ms": ms, "min_ms": min(times), "max_ms": max(times),
                          "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
                          "device": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    if a.mode == "fsdp2":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
