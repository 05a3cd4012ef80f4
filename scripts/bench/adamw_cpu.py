#!/usr/bin/env python3
"""The peer of `k25 bench op adamw --device cpu`: PyTorch's fused AdamW on the CPU, by thread count.

  scripts/bench/adamw_cpu.py --threads 1 2 4

fp32 parameters, moments and gradients: 28 bytes a parameter are read and written. PyTorch cannot write the bf16 copy in the
same pass; "with copy" adds its own pass and counts the 30 bytes that a fused one needs. Exit code 2: torch is missing.
"""
import argparse
import statistics
import sys
import time


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--parameters", type=int, default=2048 * 5632 * 3, help="as many as k25 bench op adamw takes")
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    p.add_argument("--rounds", type=int, default=7)
    a = p.parse_args()
    if min(a.parameters, a.rounds, *a.threads) < 1:
        p.error("numbers are positive")
    try:
        import torch
    except ImportError:
        print(f"adamw_cpu: PyTorch is not installed for {sys.executable}", file=sys.stderr)
        sys.exit(2)

    weight = torch.zeros(a.parameters).requires_grad_()
    weight.grad = torch.full((a.parameters,), 1e-3)
    copy = torch.empty(a.parameters, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW([weight], lr=1e-4, fused=True)

    def with_copy():
        optimizer.step()
        copy.copy_(weight.detach())

    def median(call):
        call()
        times = []
        for _ in range(a.rounds):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    print(f"torch {torch.__version__} fused AdamW, {a.parameters} parameters")
    print(f"{'threads':<10}{'ms':>12}{'GB/s':>12}{'Gparam/s':>14}{'copy GB/s':>14}{'copy Gparam/s':>14}")
    for threads in a.threads:
        torch.set_num_threads(threads)
        plain, both = median(optimizer.step), median(with_copy)
        count = a.parameters * 1e-9
        print(f"{threads:<10}{plain * 1e3:>12.4g}{28 * count / plain:>12.4g}{count / plain:>14.4g}"
              f"{30 * count / both:>14.4g}{count / both:>14.4g}")


if __name__ == "__main__":
    main()
