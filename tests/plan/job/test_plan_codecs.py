"""The plan's bytes of codecs and tensors are those of the trainer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.catalog.shapes import ModelShape
from penstock.model.initialize import decoder_on_meta
from penstock.plan.hardware.machine import of_catalog
from penstock.plan.job.codecs import HEADER_BYTES, codec_size, topk_kept
from penstock.plan.job.job import Job, ReplicaSync
from penstock.plan.job.layout import Layout
from penstock.plan.job.tensors import rank_tensors
from penstock.plan.step import outer
from penstock.train.codecs.codec import build_codec, encoded_bytes
from penstock.train.codecs.topk import TopK
from penstock.train.optim.nesterov import Nesterov
from penstock.train.replicas.outer import HEADER, OuterStep

CODECS = ("none", "bf16", "int8", "int4", "int2", "topk:3%", "topk:0.5%", "topk:50%")


@pytest.mark.parametrize("name", CODECS)
@given(blocks=st.integers(1, 50))
def test_a_codec_has_the_size_that_the_trainer_writes(name, blocks):
    codec, size = build_codec(name), codec_size(name)
    assert (codec.block, codec.exact) == (size.block, size.exact)
    count = blocks * codec.block
    assert encoded_bytes(codec, count) == size.encoded_bytes([count])
    assert encoded_bytes(codec, count) == size.encoded_bytes([count - codec.block + 1])


@given(st.floats(0.0001, 0.5))
def test_topk_keeps_as_many_values_as_the_trainer(share):
    assert TopK(share).kept == topk_kept(share)


SHAPES = {
    "odd": ModelShape(2, 48, 3, 1, 80, 301),
    "tied": ModelShape(3, 64, 4, 2, 96, 512, tied=True, qk_norm=True),
    "biased": ModelShape(2, 64, 4, 4, 96, 512, attention_bias=True, out_bias=True, sinks=True),
    "latent": ModelShape(
        2, 64, 4, 4, 96, 300, kv_rank=16, q_rank=24, rope_dim=8, nope_dim=16, v_dim=16
    ),
    "experts": ModelShape(
        3,
        64,
        4,
        2,
        96,
        300,
        experts=4,
        experts_active=2,
        expert_ffn=40,
        shared_experts=1,
        dense_layers=1,
        expert_bias=True,
    ),
}


def job_of(shape, layout, codec="none", parts=1):
    machine = of_catalog("H100", layout.ranks)
    sync = ReplicaSync(10, codec, parts)
    return Job(shape, 64, 16, layout, machine, sync=sync)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_tensors_of_a_rank_are_the_decoders(shape):
    model = decoder_on_meta(shape)
    found = rank_tensors(job_of(shape, Layout(replicate=2)))
    assert list(found) == [p.numel() for p in model.parameters()]
    assert sum(found) == shape.params()


@pytest.mark.parametrize("shards", [2, 3])
@pytest.mark.parametrize("name", ["odd", "tied", "biased", "latent"])
def test_the_first_shard_has_the_rows_that_fsdp_gives_it(name, shards):
    shape = SHAPES[name]
    found = rank_tensors(job_of(shape, Layout(replicate=2, shard=shards)))
    expected = [p.chunk(shards)[0].numel() for p in decoder_on_meta(shape).parameters()]
    assert list(found) == expected


class Alone:
    replica, replicas = 0, 2

    def begin(self, content):
        self.sent = getattr(self, "sent", 0) + len(content)
        return self


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", ["odd", "experts"])
def test_a_round_has_as_many_bytes_as_the_outer_step_sends(name, parts, codec):
    shape, transport = SHAPES[name], Alone()
    weights = {n: torch.zeros(p.shape) for n, p in decoder_on_meta(shape).named_parameters()}
    step = OuterStep(weights, build_codec(codec), Nesterov(1.0, 0.3), transport, parts)
    for part in range(parts):
        step.begin(part, 1)
    job = job_of(shape, Layout(replicate=2), codec, parts)
    assert outer.message_bytes(job) == step.sent_bytes == transport.sent
    assert HEADER.size == HEADER_BYTES
