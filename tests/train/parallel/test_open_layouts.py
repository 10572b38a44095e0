"""Whatever the layout, the ranks together hold the open model's weights, each in its place."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import real_ranks
from open_families import saved

LAYOUTS = [
    {"shard": 2},
    {"tensor": 2},
    {"pipeline": 2},
    {"shard": 2, "tensor": 2},
    {"shard": 4, "expert": 2},
    {"context": 2, "tensor": 2, "expert": 4},
]


def held(path: str, layouts: list[dict[str, int]]) -> list[dict[str, bool]]:
    """On one rank: for each layout, whether each tensor that it has a part of is the file's."""
    import torch

    from penstock.model.open.weights import OpenWeights
    from penstock.plan.job.layout import Layout
    from penstock.run.load import load
    from penstock.train.parallel.materialize import materialize
    from penstock.train.parallel.parts import full_tensor
    from penstock.train.world.world import join

    run = load(path)
    weights = OpenWeights(run.model.from_ or "")
    answers = []
    for number, layout in enumerate(layouts):
        os.environ["PENSTOCK_ATTEMPT"] = f"{len(layouts)}-{number}"  # a rendezvous of its own
        laid = Layout(**layout)
        world = join(laid, "cpu", 60.0, None)
        parts = materialize(run, laid, weights.shape.vocab, world).parts
        named = {**dict(parts.named_parameters()), **parts.named_buffers()}
        answers.append(
            {
                n: torch.equal(full_tensor(t.detach()), weights.read(n).double())
                for n, t in named.items()
            }
        )
        real_ranks.leave()
    return answers


@pytest.mark.parametrize("ways", [2, 4])
def test_every_rank_gets_its_part(
    ways: int, tmp_path: Path, ranks: Callable[..., list[Any]]
) -> None:
    saved("dots1", tmp_path / "model")
    path = tmp_path / "run.toml"
    path.write_text(
        f'[model]\nfrom = "{tmp_path / "model"}"\n[data]\nsequence = 16\n'
        '[train]\nprecision = "fp64"\nbatch_tokens = 64\n'
    )
    from penstock.model.open.weights import OpenWeights
    from penstock.plan.job.layout import Layout

    layouts = [one for one in LAYOUTS if Layout(**one).ranks == ways]
    assert layouts
    every = set(OpenWeights(tmp_path / "model").dimensions)
    answers = ranks(ways, held, str(path), layouts)
    for number, layout in enumerate(layouts):
        of_ranks = [answer[number] for answer in answers]
        assert set().union(*of_ranks) == every, layout
        wrong = {name for one in of_ranks for name, right in one.items() if not right}
        assert not wrong, layout
