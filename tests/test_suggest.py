"""A name that is not known: the guess is what was meant, or there is none."""

import pytest

from penstock.catalog import accelerators, models
from penstock.errors import nearest
from penstock.run.fields import RUN
from penstock.suggest import closest

CHIPS = [key for chip in accelerators.TABLE for key in chip.known_as()]
PRESETS = models.names()
PRECISIONS = RUN.by_path["train", "precision"].choices
FIELDS = sorted({field.path[-1] for field in RUN.fields})


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        # The same numbers, as part of a longer name.
        ("A100-40", CHIPS, "A100 SXM4 40GB"),
        ("A100 40", CHIPS, "A100 SXM4 40GB"),
        ("a100-pcie", CHIPS, "A100 PCIe 80GB"),
        ("RTX4090", CHIPS, "RTX 4090"),
        ("4090", CHIPS, "RTX 4090"),
        ("H1000", CHIPS, None),
        ("H20O SXM", CHIPS, "H200 SXM"),
        ("A101", CHIPS, None),
        ("K80", CHIPS, None),
        ("Grace Hoper", CHIPS, "Grace Hopper"),
        # Other words for the same thing.
        ("fp16", PRECISIONS, "bf16"),
        ("float32", PRECISIONS, "fp32"),
        ("bfloat16", PRECISIONS, "bf16"),
        ("fp12", PRECISIONS, None),
        ("fp4", PRECISIONS, None),
        # Names of the user's own: a word that only looks a little alike is no guess.
        ("fineweb", ["mine", "stdlib"], None),
        ("nope", ["pipe", "test"], None),
        ("smal", ["small", "large"], "small"),
        ("stdib", ["mine", "stdlib"], "stdlib"),
        ("STDLIB", ["mine", "stdlib"], "stdlib"),
        ("run-12", ["run-13", "run-2"], None),
        # Slips of the keyboard.
        ("tokns", FIELDS, "tokens"),
        ("lerning_rate", FIELDS, "learning_rate"),
        ("learnign_rate", FIELDS, "learning_rate"),
        ("batchtokens", FIELDS, "batch_tokens"),
        ("sequnce", FIELDS, "sequence"),
        ("xyz", FIELDS, None),
        ("lama-8b", PRESETS, "llama-8b"),
        ("llama-9000b", PRESETS, None),
        ("cosin", ["cosine", "wsd"], "cosine"),
        ("adam", ["adamw", "muon"], "adamw"),
        ("slrum", ["local", "slurm", "ssh"], "slurm"),
        ("", ["a", "b"], None),
        ("x", [], None),
    ],
)
def test_the_guess(name: str, known: list[str], meant: str | None) -> None:
    assert closest(name, known) == meant
    assert nearest(name, known) == (f"Did you mean '{meant}'?" if meant else "")
