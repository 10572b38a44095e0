"""What this version cannot do is refused by name, and what it can is not."""

import pytest

from penstock.errors import NotYet
from penstock.run import fields
from penstock.run.unsupported import (
    UNSUPPORTED_FIELDS,
    UnsupportedField,
    refuse_unsupported,
    unsupported_lines,
)

TEXT = '[model]\npreset = "llama-3m"\n'

REFUSED = [
    ("dir=s3://bucket/runs", "a run at a URL"),
]


@pytest.mark.parametrize(("override", "what"), REFUSED)
def test_unsupported_fields_are_refused_with_a_fix(run_of, override, what):
    lines = unsupported_lines(run_of(TEXT, override))
    (line,) = [line for line in lines if what in line]
    assert line.startswith(f"{override.partition('=')[0]} = ")
    assert "not built yet; " in line


@pytest.mark.parametrize(
    "override",
    [
        "data.dataset=hf:org/name",
        "data.dataset=some/folder",
        "data.on_bad_shard=skip",
        'data.mix=[{dataset="a", weight=1}]',
        "train.precision=fp32",
        "train.precision=fp64",
        "train.optimizer=muon",
        "train.weights=bf16",
        "train.states=bf16",
        "train.schedule=wsd",
        "train.sync.compress=bf16",
        "train.sync.compress=int8",
        "train.epochs=2",
        "layout.replicate=2",
        "layout.shard=2",
        "layout.tensor=2",
        "layout.context=2",
        "layout.microbatch=2",
        "guard.checkpoint=10 min",
        "guard.on_oom=replan",
        "guard.durable=s3://bucket",
        "train.precision=fp8",
        "layout.recompute=full",
        "evaluate.every=never",
        "cluster.accelerators=2",
        "cluster.nodes=2",
        "cluster.wait=1 min",
        "cluster.use=a3-mega",
        "cluster.launcher=slurm",
        "guard.spares=1",
        "model.layers=3",
        "model.preset=deepseek-v3",
        "model.experts=0",
        "log.tensorboard=x",
        "log.mlflow=x",
        "log.trackio=x",
    ],
)
def test_supported_fields_pass(run_of, override):
    refuse_unsupported(run_of(TEXT, override))


def test_open_weights_and_adapters(run_of):
    run = run_of('[model]\nfrom = "x"\n[model.adapter]\nrank = 4\n[train]\nlearning_rate = 1\n')
    assert unsupported_lines(run) == []


def test_own_experts(run_of):
    text = "[model]\nlayers=2\nhidden=8\nheads=2\nexperts=4\nexperts_active=2\nexpert_ffn=8\n"
    assert unsupported_lines(run_of(text, "layout.expert=2")) == []


def test_all_are_listed_together(run_of, monkeypatch):
    gaps = [*UNSUPPORTED_FIELDS, UnsupportedField("name", lambda value: False, "a name", "none")]
    monkeypatch.setattr("penstock.run.unsupported.UNSUPPORTED_FIELDS", gaps)
    with pytest.raises(NotYet) as error:
        refuse_unsupported(run_of(TEXT, "dir=s3://bucket/runs", "name=x"))
    assert len(str(error.value).splitlines()) == 2
    assert error.value.exit_code == 2


def test_every_gap_is_a_field_and_every_gap_is_tried(run_of):
    tried = {override.partition("=")[0] for override, _ in REFUSED}
    tried |= {"model.from", "model.adapter"}
    assert {gap.field for gap in UNSUPPORTED_FIELDS} <= {field.name for field in fields.RUN.fields}
    assert {gap.field for gap in UNSUPPORTED_FIELDS} <= tried
