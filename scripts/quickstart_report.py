#!/usr/bin/env python3
"""Prints what the quickstart learned, beside two models that know only how often each token occurs.

usage: scripts/quickstart_report.py METRICS EVAL

METRICS is RUN/metrics.jsonl, for the loss before training; EVAL is what `k25 eval RUN` printed of the best
checkpoint: step=, loss=, unigram_entropy= and train_unigram_cross_entropy=, in nats a token.
"""
import re
import sys

from metrics_table import rows


def read_words(path: str, names: tuple[str, ...]) -> list[float]:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    values = []
    for name in names:
        found = re.search(rf"(?:^|\s){name}=([-+.e\d]+)", text)
        if not found:
            sys.exit(f"k25 eval printed no number {name}=: {text.strip() or 'nothing'}")
        values.append(float(found.group(1)))
    return values


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    evaluations = list(rows(sys.argv[1], "val_loss"))
    if not evaluations:
        sys.exit(f"{sys.argv[1]} holds no val_loss: was eval.every set?")
    step, best, entropy, cross = read_words(
        sys.argv[2], ("step", "loss", "unigram_entropy", "train_unigram_cross_entropy"))
    first_step, first = evaluations[0]
    table = (
        (f"validation loss at step {first_step}", first),
        (f"validation loss at step {step:.0f}, the best", best),
        ("unigram entropy of the validation tokens", entropy),
        ("the training tokens' unigram on them", cross),
    )
    print("nats a token")
    for name, value in table:
        print(f"  {name:<44}{value:8.4f}")
    below = min(entropy, cross) - best
    print(f"the model is {below:.2f} nats below both unigrams" if below > 0 else
          f"the model is not below both unigrams ({-below:.2f} nats missing): train longer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
