"""Overrides from the command line."""

import pytest

from penstock.errors import PenstockError
from penstock.run.load import load

TEXT = '[model]\npreset = "llama-3m"\n[train]\ntokens = "1M"\nseed = 1\n'


@pytest.mark.parametrize(
    ("override", "look", "value"),
    [
        ("train.tokens=2B", lambda r: r.train.tokens, 2 * 10**9),
        ('train.tokens="2B"', lambda r: r.train.tokens, 2 * 10**9),
        ("train.seed=7", lambda r: r.train.seed, 7),
        ("train.learning_rate=3e-4", lambda r: r.train.learning_rate, 3e-4),
        ("train.learning_rate=auto", lambda r: r.train.learning_rate, "auto"),
        ("train.betas=[0.8, 0.9]", lambda r: r.train.betas, (0.8, 0.9)),
        ("train.deterministic=true", lambda r: r.train.deterministic, True),
        ("train.warmup=2%", lambda r: r.train.warmup.share, 0.02),
        ("guard.checkpoint=10 min", lambda r: r.guard.checkpoint.seconds, 600),
        (" guard . keep = 5 ", lambda r: r.guard.keep, 5),
        ("train.sync.compress=bf16", lambda r: r.train.sync.compress, "bf16"),
        ("layout.shard=2", lambda r: r.layout.shard, 2),
        ("model.layers=3", lambda r: r.model.shape(None).layers, 3),
        # A field of text takes the text, whatever TOML would make of it.
        ("name=7", lambda r: r.name, "7"),
        ("name=2026-01-01", lambda r: r.name, "2026-01-01"),
        ("log.wandb=true", lambda r: r.log.wandb, "true"),
        ("dir=a=b", lambda r: r.dir, "a=b"),
    ],
)
def test_an_override_beats_the_file(run_of, override, look, value):
    assert look(run_of(TEXT, override)) == value


def test_the_last_of_two_wins(run_of):
    assert run_of(TEXT, "train.seed=2", "train.seed=3").train.seed == 3


def test_naming_one_of_several_ways_takes_the_place_of_the_files(run_of):
    run = run_of(TEXT, "train.steps=9")
    assert (run.train.steps, run.train.tokens) == (9, None)
    run = run_of(TEXT, "model.module=net.py:build", "train.learning_rate=1")
    assert (run.model.module, run.model.preset) == ("net.py:build", None)
    run = run_of(TEXT + '[data]\ndataset = "a"\n', 'data.mix=[{dataset="b", weight=1}]')
    assert run.data.mix[0].dataset == "b"


def test_two_overrides_that_contradict_are_refused(run_of):
    with pytest.raises(
        PenstockError, match=r"command line: train\.steps = 9: `tokens` is given too"
    ):
        run_of(TEXT, "train.steps=9", "train.tokens=1M")


def test_an_empty_file_can_be_filled_from_the_command_line(run_of):
    assert run_of("", "model.preset=llama-3m").model.preset == "llama-3m"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.tokens", "command line: 'train.tokens': not an override; write FIELD=VALUE"),
        ("=3", "command line: '=3': not an override; write FIELD=VALUE"),
        ("train..tokens=3", "command line: 'train..tokens=3': not an override"),
        ("train.tokens=", "command line: 'train.tokens=': not an override"),
        ("train.tokns=3", "command line: train.tokns: no such field. Did you mean 'tokens'?"),
        ("trian.tokens=3", "command line: trian: no such field. Did you mean 'train'?"),
        ("train.seed.x=3", "command line: train.seed.x: the file gives `seed` as a value"),
        ("train=3", "command line: train = 3: a section, not a value; write [train]"),
        ("train.tokens=12x", 'command line: train.tokens = "12x": not a quantity of tokens'),
        ("train.seed=1\nx = 2", 'command line: train.seed = "1\\nx = 2": not a quantity'),
    ],
)
def test_a_wrong_override_is_named_as_such(run_of, override, message):
    with pytest.raises(PenstockError) as error:
        run_of(TEXT, override)
    assert str(error.value).startswith(message)


def test_a_mistake_in_the_file_beside_an_override_keeps_its_line(tmp_path):
    file = tmp_path / "r.toml"
    file.write_text('[model]\npreset = "llama-3m"\n[train]\nseed = -1\nclip = 2\n')
    with pytest.raises(PenstockError) as error:
        load(file, ["train.clip=-2"])
    first, second = str(error.value).split("\n")
    assert first.startswith(f"{file}:4: train.seed = -1")
    assert second.startswith("command line: train.clip = -2")
