"""A resolved run, written and read back, is the same run."""

import tomllib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.run.fingerprint import fingerprint
from penstock.run.load import load
from penstock.run.save import save, to_table, to_toml
from penstock.run.schema.quantity import show_duration
from penstock.run.schema.run import Run

words = st.text(
    st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=8
)
counts = st.integers(1, 2**40)
few = st.integers(1, 10**6)
shares = st.floats(0, 0.4)
positive = st.floats(1e-12, 1e12)
intervals = st.integers(1, 10**6).map("{} steps".format) | st.floats(1e-3, 1e9).map(show_duration)


def table(**fields):
    return st.fixed_dictionaries({}, optional=fields)


models = (
    table(tied=st.booleans(), rope_theta=positive, qk_norm=st.booleans(), vocab=counts).map(
        lambda given: {"preset": "llama-3m", "context": 2048, **given}
    )
    | st.just({"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128})
    | words.map(lambda w: {"from": w, "adapter": {"rank": 4, "targets": ["ffn", "q"]}})
    | st.just({"module": "net.py:build"})
)
data = table(dataset=words, sequence=st.integers(1, 2048)) | st.lists(
    st.fixed_dictionaries({"dataset": words, "weight": positive}), min_size=1, max_size=3
).map(lambda mix: {"mix": mix})
lengths = (
    st.builds(dict, tokens=counts)
    | st.builds(dict, steps=counts)
    | st.builds(dict, epochs=positive)
)
train = st.builds(
    lambda length, rest: {"learning_rate": 1e-3, **length, **rest},
    lengths,
    table(
        learning_rate=positive,
        betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)).map(list),
        eps=positive,
        clip=st.just(0) | positive,
        final=shares,
        warmup=shares,
        decay=shares,
        schedule=st.sampled_from(["cosine", "wsd"]),
        precision=st.sampled_from(["fp32", "bf16", "fp8", "fp64"]),
        seed=st.integers(0, 2**62),
        sync=table(compress=st.sampled_from(["none", "bf16", "int8"])),
    ),
)
tables = st.fixed_dictionaries(
    {"name": st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?", fullmatch=True)},
    optional={
        "dir": words,
        "data": data,
        "evaluate": table(every=intervals | st.just("never"), holdout=shares, tokens=counts),
        "layout": table(replicate=few, shard=few, microbatch=few),
        "cluster": table(use=words, nodes=few, launcher=st.sampled_from(["local", "ssh"])),
        "guard": table(
            checkpoint=intervals | st.just("auto"),
            durable=words,
            timeout=st.floats(1e-3, 1e9).map(show_duration),
        ),
        "budget": table(usd=positive, hours=positive),
        "log": table(
            wandb=words,
            trackio=words,
            tensorboard=st.sampled_from([True, False, "some/folder"]),
            mlflow=st.sampled_from(["$SERVER", "http://x:5000", "experiment"]),
            webhook=st.sampled_from(["$HOOK", "https://x/y"]),
        ),
    },
)
runs = st.builds(
    lambda top, model, length: Run.model_validate({**top, "model": model, "train": length}),
    tables,
    models,
    train,
)


@given(runs)
@settings(max_examples=150, deadline=None)
def test_a_resolved_run_loads_back_equal(tmp_path_factory, run):
    file = tmp_path_factory.getbasetemp() / "resolved.toml"
    save(run, file)
    again = load(file)
    assert again == run
    assert fingerprint(again) == fingerprint(run)
    assert to_toml(again) == to_toml(run)


def test_the_text_holds_the_defaults_and_says_what_was_chosen(run_of):
    run = run_of('[model]\npreset = "llama-3m"\n[train]\ntokens = "1M"\n')
    text = to_toml(run)
    first = text.splitlines()[0]
    assert first.startswith("# resolved by penstock 0")
    assert f"train.batch_tokens = {run.batch_tokens}" in first
    read = tomllib.loads(text)
    assert read["guard"]["timeout"] == "2 min"
    evaluate = {"every": "250 steps", "holdout": "0.5%", "tokens": 262144}
    evaluate |= {"tasks": [], "tasks_every": "1000 steps"}
    assert read["evaluate"] == evaluate | {"keep_best": 0, "min_delta": 0.0}
    assert read["train"]["betas"] == [0.9, 0.95]
    assert read["budget"] == {"hours_paused": "idle", "hours_zone": "UTC"}
    assert "layout" not in read


def test_names_are_those_of_the_file(run_of):
    run = run_of('[model]\nfrom = "x"\n[train]\nlearning_rate = 1\n')
    assert to_table(run)["model"] == {"from": "x"}


def test_a_file_is_replaced_atomically(run_of, tmp_path):
    run = run_of('[model]\npreset = "llama-3m"\n')
    path = tmp_path / "saved.toml"
    path.write_text("old " * 10_000)
    save(run, path)
    assert load(path) == run.model_copy(update={"name": "run"})
    assert sorted(p.name for p in Path(tmp_path).iterdir()) == ["run.toml", "saved.toml"]


def test_local_steps_load_back_equal_and_replicas_are_part_of_the_fingerprint(tmp_path, run_of):
    text = (
        '[model]\npreset = "llama-3m"\n[train.sync]\nlocal_steps = 30\ncompress = "topk:2.5%"\n'
        "outer_rate = 0.7\nouter_momentum = 0.9\nstream = 3\n[layout]\nreplicate = 2\n"
    )
    run = run_of(text)
    save(run, tmp_path / "resolved.toml")
    again = load(tmp_path / "resolved.toml")
    assert again == run
    assert fingerprint(again) == fingerprint(run)
    for change in ("layout.replicate=4", "train.sync.stream=1", "train.sync.outer_momentum=0"):
        assert fingerprint(run_of(text, change)) != fingerprint(run)
    assert fingerprint(run_of(text, "layout.shard=2")) == fingerprint(run)
