"""Pairs of answers: from rows to two sequences of one length, and back in any order."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.data.build.build import build
from penstock.data.read.stream import Stream
from penstock.data.recipe.load import RECIPE, raw_recipe
from penstock.data.recipe.recipe import Recipe
from penstock.data.sources.guess import guess_fields
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError
from penstock.run.load import check_table

SEQUENCE = 32


def row(number: int) -> dict[str, Any]:
    return {
        "prompt": f"Say {number}.",
        "chosen": f"{number}!",
        "rejected": f"Not {number + 1}.",
        "from": "somewhere",
    }


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Stream:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(50)))
    recipe = raw_recipe(str(path), None, 400, SEQUENCE, "default", "dpo")
    return Stream(build(recipe), 2 * SEQUENCE, seed=3, holdout=0.1)


def test_a_sample_is_a_pair(stream: Stream) -> None:
    assert stream.pairs
    assert (stream.samples, stream.held_out, stream.row_tokens) == (45, 5, SEQUENCE)
    decode = Tokenizer.from_json(stream.dataset.tokenizer_json()).decode
    batch, seen = stream.read_stored(0, 50), set()
    assert batch.loss is not None
    for ids, mask in zip(batch.tokens, batch.loss, strict=True):
        chosen, rejected = ids[:SEQUENCE], ids[SEQUENCE : 2 * SEQUENCE]
        first, second = mask[:SEQUENCE], mask[SEQUENCE : 2 * SEQUENCE]
        good, bad = decode(chosen[first].tolist()), decode(rejected[second].tolist())
        number = int(good.partition("!")[0])
        assert good.removesuffix("<|end|>") == f"{number}!"
        assert bad.startswith(f"Not {number + 1}.")
        assert f"Say {number}." in decode(chosen.tolist())
        assert f"Say {number}." in decode(rejected.tolist())
        assert not first[0]
        assert not second[0]
        seen.add(number)
    assert seen == set(range(50))


def test_numbers_say_which_pair_a_position_reads(stream: Stream) -> None:
    whole = stream.read_stored(0, stream.stored_samples)
    assert whole.numbers is not None
    assert whole.numbers.tolist() == list(range(50))
    epoch = stream.read(0, 45)
    assert epoch.numbers is not None
    assert sorted(epoch.numbers.tolist()) == list(range(45))
    assert (epoch.tokens == whole.tokens[epoch.numbers]).all()
    held = stream.read_held_out(0, 5)
    assert held.numbers is not None
    assert held.numbers.tolist() == list(range(45, 50))
    some = stream.read_stored(43, 47)
    assert (some.tokens == whole.tokens[43:47]).all()


def test_numbers_of_a_mixture_are_all_different(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    path.write_text("".join(json.dumps(row(n)) + "\n" for n in range(100, 120)))
    tokenizer = stream.dataset.id
    other = build(raw_recipe(str(path), tokenizer, None, SEQUENCE, None, "ipo"))
    mix = Stream([(stream.dataset, 2.0), (other, 1.0)], 2 * SEQUENCE, seed=0, holdout=0.1)
    whole = mix.read_stored(0, mix.stored_samples)
    assert whole.numbers is not None
    assert whole.numbers.tolist() == list(range(70))
    batch = mix.read(0, 30)
    assert batch.numbers is not None
    assert (batch.tokens == whole.tokens[batch.numbers]).all()
    held = mix.read_held_out(0, 2)
    assert held.numbers is not None
    assert np.array_equal(held.tokens, whole.tokens[held.numbers])


def test_pairs_do_not_mix_with_text(stream: Stream, tiny: str) -> None:
    from penstock.data.build.open import open_dataset

    with pytest.raises(PenstockError, match="tokenizers"):
        Stream([(stream.dataset, 1.0), (open_dataset(tiny), 1.0)], 64, seed=0, holdout=0.0)


def test_the_objective_decides_what_rows_with_both_are(tmp_path: Path) -> None:
    both = row(1) | {"messages": [{"role": "user", "content": "Hm?"}]}
    path = tmp_path / "both.jsonl"
    path.write_text(json.dumps(both) + "\n")
    assert guess_fields(str(path)) == {"messages": "messages"}
    pair = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    assert guess_fields(str(path), pairs=True) == pair
    path.write_text(json.dumps(row(1)) + "\n")
    assert guess_fields(str(path)) == pair


@pytest.mark.parametrize(
    ("source", "tokens", "says"),
    [
        ({"chosen": "a"}, {"pack": 64}, "needs `prompt` and `rejected` beside it"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, {"pack": 64}, "three different fields"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, {}, "write pack = 1024"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"pack": 64, "loss": "all"},
            "of a pair the two answers are learned",
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c", "response": "d"},
            {"pack": 64},
            "remove it",
        ),
    ],
)
def test_recipes_that_do_not_fit(
    source: dict[str, str], tokens: dict[str, Any], says: str, tmp_path: Path
) -> None:
    table = {"name": "mine", "source": [{"path": "rows.jsonl", **source}], "tokens": tokens}
    with pytest.raises(PenstockError) as raised:
        check_table(RECIPE, table, [], tmp_path / "mine.toml")
    assert says in str(raised.value)


def test_older_recipes_keep_their_identity() -> None:
    recipe = Recipe.model_validate({"name": "old", "source": [{"path": "rows.jsonl"}]})
    sources = recipe.identity()["source"]
    assert isinstance(sources, list)
    assert not {"chosen", "rejected"} & set(sources[0])  # type: ignore[arg-type]
