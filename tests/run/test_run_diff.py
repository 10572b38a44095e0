"""Which changes a run may go on with, and what its fingerprint stands for."""

import pytest

from penstock.run.diff import describe_changes, diff, with_old_choices
from penstock.run.fingerprint import canonical, fingerprint

TEXT = (
    '[model]\npreset = "llama-3m"\n[train]\ntokens = "1M"\n'
    '[guard]\nkeep = 3\n[evaluate]\nevery = "250 steps"\n'
)
STEPS = TEXT.replace('tokens = "1M"', "steps = 100")


def change_of(run_of, text, *overrides):
    (change,) = diff(run_of(text), run_of(text, *overrides))
    return change


@pytest.mark.parametrize(
    "override",
    [
        "train.tokens=2M",
        "log.wandb=x",
        "guard.keep=5",
        "guard.checkpoint=10 min",
        "cluster.accelerators=2",
        "budget.usd=5",
        "evaluate.every=10 steps",
    ],
)
def test_safe_changes(run_of, override):
    change = change_of(run_of, TEXT, override)
    assert change.safe
    assert change.field == override.partition("=")[0]


@pytest.mark.parametrize(
    "override",
    [
        "train.tokens=999999",
        "train.seed=1",
        "train.learning_rate=0.1",
        "train.precision=fp32",
        "train.warmup=10%",
        "train.batch_tokens=8192",
        "model.layers=3",
        "model.tied=false",
        "data.sequence=128",
        "data.dataset=other",
        "evaluate.holdout=1%",
        "name=other",
    ],
)
def test_unsafe_changes(run_of, override):
    change = change_of(run_of, TEXT, override)
    assert not change.safe
    assert change.field == override.partition("=")[0]


def test_a_layout_that_appears_is_safe(run_of):
    changes = diff(run_of(TEXT), run_of(TEXT, "layout.shard=2"))
    assert {c.field for c in changes} >= {"layout.shard", "layout.tensor"}
    assert all(c.safe for c in changes)


def test_nothing_changed(run_of):
    assert diff(run_of(TEXT), run_of(TEXT)) == []


def test_spelling_is_no_change(run_of):
    assert diff(run_of(TEXT), run_of(TEXT, "train.tokens=1000K", "guard.timeout=120 s")) == []


@pytest.mark.parametrize(
    ("text", "override", "safe"),
    [
        (TEXT, "train.steps=489", True),  # 1M tokens are 489 steps of 2048
        (TEXT, "train.steps=244", False),
        (TEXT, "train.epochs=900", False),  # not known to be more
        (STEPS, "train.tokens=1M", True),
        (STEPS, "train.steps=101", True),
        (STEPS, "train.steps=99", False),
    ],
)
def test_a_run_may_only_get_longer_in_whatever_unit(run_of, text, override, safe):
    changes = diff(run_of(text), run_of(text, override))
    assert changes
    assert all(change.safe == safe for change in changes)


def test_a_longer_run_keeps_its_batch(run_of):
    old, new = run_of(TEXT), run_of(TEXT, "train.tokens=100M")
    assert new.batch_tokens != old.batch_tokens  # a fresh run would choose a larger one
    assert [c.field for c in diff(old, new)] == ["train.tokens"]
    kept = with_old_choices(old, new)
    assert kept.batch_tokens == old.batch_tokens
    assert kept.train.tokens == 100_000_000
    # What was kept is written down, and going on once more changes nothing.
    assert diff(kept, new) == []


def test_writing_out_the_chosen_values_is_not_a_change(run_of):
    old = run_of(TEXT)
    explicit = run_of(TEXT, f"train.batch_tokens={old.batch_tokens}")
    assert diff(old, explicit) == []
    assert diff(explicit, old) == []
    assert fingerprint(explicit) == fingerprint(old)


def test_the_difference_is_readable(run_of):
    changes = diff(run_of(TEXT), run_of(TEXT, "train.seed=3", "log.wandb=x", "train.tokens=2M"))
    assert describe_changes(changes).splitlines() == [
        "train.tokens: 1000000 → 2000000",
        "train.seed: 0 → 3   (needs a fork)",
        'log.wandb: not set → "x"',
    ]


@pytest.mark.parametrize(
    ("override", "same"),
    [
        ("name=other", True),
        ("dir=elsewhere", True),
        ("guard.keep=9", True),
        ("layout.shard=2", True),
        ("cluster.accelerators=1", True),
        ("log.wandb=x", True),
        ("budget.usd=1", True),
        ("evaluate.every=never", True),
        ("evaluate.holdout=1%", False),
        ("train.seed=1", False),
        ("train.tokens=2M", False),  # the schedule follows the length
        ("train.learning_rate=0.1", False),
        ("train.precision=fp32", False),
        ("train.sync.compress=bf16", False),
        ("model.layers=3", False),
        ("model.preset=llama-15m", False),
        ("data.dataset=other", False),
        ("data.sequence=128", False),
    ],
)
def test_a_fingerprint_covers_what_decides_the_numbers(run_of, override, same):
    assert (fingerprint(run_of(TEXT, override)) == fingerprint(run_of(TEXT))) == same


def test_a_preset_and_the_same_shape_have_one_fingerprint(run_of):
    preset = run_of(TEXT)
    shape = preset.model.shape(None)
    names = ["layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "context", "rope_theta"]
    given = [f"{name} = {getattr(shape, name)}" for name in names]
    given += [f"tied = {str(shape.tied).lower()}", f"qk_norm = {str(shape.qk_norm).lower()}"]
    spelled = run_of(TEXT.replace('preset = "llama-3m"', "\n".join(given)))
    assert canonical(spelled) == canonical(preset)


def test_a_fingerprint_is_short_and_stable(run_of):
    text = (
        "[model]\nlayers=2\nhidden=64\nheads=4\nffn=128\nvocab=300\n"
        "[data]\nsequence=64\n[train]\nsteps=10\nbatch_tokens=256\nlearning_rate=0.001\n"
        'precision="bf16"\n'
    )
    assert fingerprint(run_of(text)) == (
        "9b01b007f2736a3ef748eb492a3ba26638985b97028e81e6a2f9b593cb62cd55"
    )


def test_defaults_of_a_new_section_are_not_listed(run_of):
    changes = diff(run_of(TEXT), run_of(TEXT, "layout.shard=2"))
    assert describe_changes(changes) == "layout.shard: not set → 2"
    only = diff(run_of(TEXT), run_of(TEXT, "layout.tensor=1"))
    assert "layout.tensor: not set → 1" in describe_changes(only)  # what was asked for is answered
    other = diff(run_of(TEXT), run_of(TEXT, "train.clip=0.5"))
    assert describe_changes(other) == "train.clip: 1.0 → 0.5   (needs a fork)"


def test_going_on_keeps_the_precision_that_the_first_machine_chose(run_of):
    old = run_of(TEXT, "train.precision=fp32")
    assert with_old_choices(old, run_of(TEXT)).train.precision == "fp32"
    assert not diff(old, run_of(TEXT))
    asked = diff(old, run_of(TEXT, "train.precision=bf16"))
    assert [(c.field, c.safe) for c in asked] == [("train.precision", False)]
