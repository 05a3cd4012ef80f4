"""The operands of golden values: a hash that the tests evaluate too (tests/golden/hashed.h), so that only results are
stored."""
import torch


def hashed(count, salt):
    """uniform in [-0.5, 0.5): (i * 2654435761 + salt * 40503 + 12345) mod 2^32, scrambled once."""
    values = []
    for i in range(count):
        x = (i * 2654435761 + salt * 40503 + 12345) & 0xFFFFFFFF
        x ^= x >> 15
        x = (x * 2246822519) & 0xFFFFFFFF
        x ^= x >> 13
        values.append(x / 2**32 - 0.5)
    return torch.tensor(values, dtype=torch.float64)
