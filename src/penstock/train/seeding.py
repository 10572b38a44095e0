"""The seed of a step's random numbers (dropout): a function of (seed, step, data rank) alone."""

import torch
from xxhash import xxh3_64_intdigest


def seed_step(seed: int, step: int, data_rank: int) -> None:
    """Seed torch for one step. Nothing has to be saved, and another rank can draw the same."""
    drawn = xxh3_64_intdigest(f"{seed}:{step}:{data_rank}".encode()) >> 1
    # Not `torch.manual_seed`: where CUDA is not used it formats a traceback at every call.
    torch.default_generator.manual_seed(drawn)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(drawn)
