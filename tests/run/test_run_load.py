"""Good run files: what they mean, and what follows from them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.run.load import load
from penstock.run.schema.quantity import Every, Portion
from penstock.run.schema.train import choose_batch_tokens, choose_learning_rate

SHORT = '[model]\npreset = "llama-3m"\n'
SHAPE = "[model]\nlayers = 2\nhidden = 64\nheads = 4\nffn = 128\n"

FULL = """
name = "code-1b"
dir = "elsewhere"
[model]
preset = "llama-1b"
[data]
dataset = "stdlib"
sequence = 2048
on_bad_shard = "stop"
[train]
tokens = "20B"
batch_tokens = 524288
optimizer = "adamw"
learning_rate = 3e-4
schedule = "cosine"
precision = "bf16"
deterministic = false
seed = 0
[train.sync]
local_steps = 1
compress = "none"
[evaluate]
every = "250 steps"
holdout = "0.5%"
[layout]
replicate = 1
shard = 8
tensor = 1
pipeline = 1
context = 1
expert = 1
microbatch = 4
recompute = "none"
[cluster]
use = "here"
accelerators = "all"
nodes = 1
launcher = "local"
[guard]
checkpoint = "auto"
durable = "s3://bucket/runs"
keep = 3
mode = "restart"
spares = 0
on_spike = "rollback"
on_oom = "stop"
[budget]
usd = 50
hours = 12
[log]
wandb = "project"
"""


def test_the_whole_file_of_the_design(run_of):
    run = run_of(FULL)
    assert run.train.tokens == 20 * 10**9
    assert (run.sequence, run.batch_tokens, run.batch_samples) == (2048, 524288, 256)
    assert run.steps() == 38147  # 20e9 / 524288, rounded up
    assert run.learning_rate == 3e-4
    assert run.folder == Path("elsewhere/code-1b")
    assert run.guard.timeout == 120
    assert run.layout.per_replica == 8
    assert run.evaluate.every == Every(steps=250)
    assert run.choices() == {}


def test_a_short_file_has_defaults_that_work(run_of):
    run = run_of(SHORT)
    assert run.name == "run"
    assert run.folder == Path("runs/run")
    assert run.train.tokens == 1_000_000
    assert run.sequence == run.model.shape(None).context
    assert run.batch_tokens == 2048
    assert run.layout is None
    assert run.train.warmup == Portion(share=0.05)
    assert run.evaluate.holdout == 0.005
    assert run.choices().keys() == {"data.sequence", "train.batch_tokens", "train.learning_rate"}


def test_a_run_cannot_be_changed(run_of):
    with pytest.raises(ValueError, match="frozen"):
        run_of(SHORT).train.seed = 4


@pytest.mark.parametrize(
    ("stem", "name"),
    [("my run (2)", "my-run-2"), (".hidden", "hidden"), ("ünïcode", "n-code"), ("…", "run")],
)
def test_a_file_without_a_name_gives_its_own(tmp_path, stem, name):
    file = tmp_path / f"{stem}.toml"
    file.write_text(SHORT)
    assert load(str(file)).name == name


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbf" + SHORT.replace("\n", "\r\n").encode())
    assert load(file).model.preset == "llama-3m"


def test_an_own_shape_takes_the_vocabulary_of_the_dataset(run_of):
    model = run_of(SHAPE).model
    assert model.base().vocab == 0
    shape = model.shape(300)
    assert (shape.vocab, shape.kv_heads, shape.tied) == (300, 4, False)
    with pytest.raises(PenstockError, match=r"model\.vocab.*write vocab"):
        model.shape(None)
    assert run_of(SHAPE + "vocab = 500\n").model.shape(300).vocab == 500


def test_shape_fields_replace_those_of_the_preset(run_of):
    plain, changed = run_of(SHORT).model, run_of(SHORT + 'layers = 3\nvocab = "1Ki"\n').model
    assert changed.shape(7).layers == 3
    assert changed.shape(7).vocab == 1024
    assert plain.shape(7).vocab != 7
    assert changed.shape(7).hidden == plain.shape(7).hidden


def test_own_code_has_no_shape(run_of):
    run = run_of('[model]\nmodule = "net.py:build"\n[train]\nlearning_rate = 0.01\n')
    assert run.model.base() is None
    assert run.sequence == 2048
    with pytest.raises(PenstockError, match="shape of `module` is known only"):
        run.model.shape(300)


def test_open_weights_take_an_adapter(run_of):
    run = run_of(
        '[model]\nfrom = "org/name"\n[model.adapter]\nrank = 8\n[train]\nlearning_rate=1\n'
    )
    assert run.model.from_ == "org/name"
    assert run.model.adapter.rank == 8


def test_a_mixture(run_of):
    text = (
        SHORT + '[[data.mix]]\ndataset = "a"\nweight = 2\n[[data.mix]]\ndataset = "b"\nweight=1\n'
    )
    assert [(p.dataset, p.weight) for p in run_of(text).data.mix] == [("a", 2.0), ("b", 1.0)]


def test_steps_of_each_length(run_of):
    batch = "[data]\nsequence = 128\n[train]\nbatch_tokens = 1024\n"
    assert run_of(SHORT + batch + "tokens = 1025\n").steps() == 2
    assert run_of(SHORT + batch + "steps = 7\n").steps() == 7
    epochs = run_of(SHORT + batch + "epochs = 1.5\n")
    assert epochs.steps(samples_per_epoch=100) == 19  # 150 samples, 8 at a time
    with pytest.raises(PenstockError, match="no samples"):
        epochs.steps(0)


def test_epochs_look_at_the_schedule_once_the_dataset_is_known(run_of):
    run = run_of(SHORT + '[train]\nepochs = 1\nwarmup = "100 steps"\n')
    assert run.steps(samples_per_epoch=10_000) > 100
    with pytest.raises(
        PenstockError, match=r'train\.warmup = "100 steps": longer than the run of 2 steps'
    ):
        run.steps(samples_per_epoch=10)


def test_two_shares_that_fill_a_run_fit_however_they_round(run_of):
    for steps in range(1, 40):
        text = f'[train]\nsteps = {steps}\nschedule = "wsd"\nwarmup = "50%"\ndecay = "50%"\n'
        assert run_of(SHORT + text).steps() == steps


@given(st.none() | st.integers(1, 10**14), st.integers(1, 10**5))
def test_a_chosen_batch_is_whole_sequences_within_bounds(tokens, sequence):
    batch = choose_batch_tokens(tokens, sequence)
    assert batch % sequence == 0
    assert batch <= max(4 * 2**20, sequence)
    assert batch > 2048 - sequence


def test_chosen_batches_and_rates():
    assert choose_batch_tokens(10**6, 256) == 2048
    assert choose_batch_tokens(10**8, 1024) == 262_144
    assert choose_batch_tokens(2 * 10**10, 2048) == 4 * 2**20
    assert choose_batch_tokens(None, 256) == 2048
    assert choose_batch_tokens(10**6, 8192) == 8192
    assert choose_learning_rate(4096) == 3e-4
    assert choose_learning_rate(64) == 3e-3
    assert choose_learning_rate(4096, "muon") == 3e-4
    assert choose_learning_rate(256, "muon") == 4.8e-3
    assert choose_learning_rate(64, "muon") == 1.2e-2


def test_the_batch_of_a_model_that_is_not_here_is_not_judged(run_of):
    away = '[model]\nfrom = "org/name"\n[train]\nsteps = 9\nbatch_tokens = 1024\n'
    assert run_of(away).train.batch_tokens == 1024  # its context may be 1024 or less
    with pytest.raises(PenstockError, match="not a whole number of sequences of 100 tokens"):
        run_of(away, "data.sequence=100")


def test_an_adapter_is_not_moved_by_muon(run_of):
    text = '[model]\nfrom = "org/name"\n[train]\noptimizer = "muon"\n'
    assert run_of(text).train.optimizer == "muon"
    with pytest.raises(PenstockError, match=r'train\.optimizer = "muon": adapters are moved'):
        run_of(text, "model.adapter.rank=4")
