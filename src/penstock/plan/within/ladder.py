"""The shapes that a budget chooses from: decoders as they are usually built, a step apart in size.

The ladder does not depend on the budget: more money can then only add what may be chosen, and the
best of it is never a worse one.
"""

from functools import cache

from penstock.catalog.shapes import ModelShape

WIDTHS = (
    *(256, 320, 384, 448, 512, 576, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2304, 2560),
    *(3072, 3584, 4096, 4608, 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384, 20480, 24576),
)
# Width over layers, as in GPT-3 and LLaMA at most sizes; small models are not made shallower.
ASPECT, LEAST_LAYERS = 128, 8
# A head table of its own is a large part of a small model (Llama 3.2, Qwen3, SmolLM: tied).
TIED_BELOW = 2048
WIDE_HEADS_FROM = 1024
VOCAB = 32768  # where the run does not say


@cache
def shapes(vocab: int, sequence: int) -> tuple[ModelShape, ...]:
    """Return the ladder, from the smallest."""
    return tuple(_shape(width, vocab, sequence) for width in WIDTHS)


def _shape(width: int, vocab: int, sequence: int) -> ModelShape:
    heads = width // (128 if width >= WIDE_HEADS_FROM else 64)
    keys = next(n for n in (8, 4, 2, 1) if heads % n == 0 and heads >= 2 * n)
    return ModelShape(
        layers=max(LEAST_LAYERS, round(width / ASPECT)),
        hidden=width,
        heads=heads,
        kv_heads=keys,
        ffn=max(256, round(8 * width / 3 / 256) * 256),
        vocab=vocab,
        tied=width < TIED_BELOW,
        context=sequence,
    )
