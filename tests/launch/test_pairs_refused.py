"""Mistakes with pairs get one message each, the same from `check` and from `train`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import pair_peer
from penstock.errors import PenstockError
from penstock.launch.prepare.listener import Listener
from penstock.launch.prepare.nodes import find_devices
from penstock.launch.prepare.prepare import prepare
from penstock.launch.start import start
from penstock.launch.verify import notes_of, verify
from penstock.run.fingerprint import fingerprint
from penstock.run.launch_record import LaunchRecord
from penstock.run.load import load, load_table
from penstock.run.save import to_table
from penstock.run.schema.preference import ON_PAIRS


class Warned(Listener):
    """What `train` would say before it starts."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def warning(self, words: str) -> None:
        self.words.append(words)


GOOD = {"prompt": "What is it?", "chosen": "It is good.", "rejected": "No idea."}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_peer.make_model("llama-3.1", tmp_path_factory.mktemp("model") / "base")


def table(folder: Path, base: Path, rows: list[Any], **fields: Any) -> dict[str, Any]:
    data = folder / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "name": "mine",
        "dir": str(folder / "runs"),
        "model.from": str(base),
        "data.dataset": str(data),
        "data.sequence": 48,
        "train.objective": "dpo",
        "train.steps": 2,
        "train.batch_tokens": 96,
        "train.precision": "fp32",
        "cluster.accelerators": 1,
    } | fields


def refused(fields: dict[str, Any]) -> str:
    """The words of both verbs, which are the same."""
    run = load_table(fields)
    found = verify(run).refused
    assert found is not None
    with pytest.raises(PenstockError) as raised:
        start(run)
    assert str(raised.value) == str(found)
    assert not run.folder.exists()
    return str(found)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"prompt": "a", "chosen": "b"},
            "line 1: no rejected (field 'rejected' is null or missing)",
        ),
        ({"chosen": "a", "rejected": "b"}, "line 1: no prompt (field 'prompt' is null or missing)"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "line 1: chosen and rejected are equal"),
        ({"prompt": "a", "chosen": " ", "rejected": "b"}, "line 1: empty message (field 'chosen')"),
        (
            {"prompt": "a", "chosen": 3, "rejected": "b"},
            "line 1: no chosen (field 'chosen' is int)",
        ),
        (
            GOOD | {"chosen": [{"role": "user", "content": "Hm?"}]},
            "field 'chosen' begins with the role user; it holds the answer alone",
        ),
    ],
)
def test_a_file_of_rows_that_are_no_pairs(
    row: dict[str, Any], says: str, base: Path, tmp_path: Path
) -> None:
    words = refused(table(tmp_path, base, [row, row]))
    assert "pairs.jsonl" in words
    assert says in words
    assert "A pair has `prompt`, `chosen` and `rejected`" in words


def test_other_rows(base: Path, tmp_path: Path) -> None:
    words = refused(table(tmp_path, base, [{"prompt": "a", "completion": "b"}]))
    assert 'train.objective = "dpo": the rows of' in words
    assert "the first has `completion`, `prompt`" in words


def test_a_dataset_without_pairs_and_pairs_without_the_objective(
    base: Path, tmp_path: Path
) -> None:
    answers = [{"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(40)]
    fields = table(tmp_path, base, answers)
    other = pair_peer.stream_of(load_table(fields | {"train.objective": "next_token"})).dataset.id
    assert f"{other} holds no pairs" in refused(fields | {"data.dataset": other})
    fields = table(tmp_path, base, pair_peer.pair_rows(8), **{"evaluate.holdout": 0})
    built = pair_peer.stream_of(load_table(fields)).dataset.id
    words = refused(fields | {"data.dataset": built, "train.objective": "next_token"})
    assert 'holds pairs of a chosen and a rejected answer; write train.objective = "dpo"' in words
    words = refused(fields | {"data.dataset": built, "train.batch_tokens": 96 * 20})
    assert f"train.batch_tokens = 1920: 20 pairs of 96 tokens, and {built} has 8" in words
    assert "write 768 or less, by whole pairs" in words


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layout.tensor": 2}, 'layout.tensor = 2: train.objective = "dpo" compares whole'),
        ({"layout.pipeline": 2}, 'layout.pipeline = 2: train.objective = "dpo" compares whole'),
        ({"layout.context": 2}, 'layout.context = 2: train.objective = "dpo" compares whole'),
        (
            {"guard.mode": "live", "layout.replicate": 2},
            'guard.mode = "live": with train.objective',
        ),
        (
            {"guard.mode": "live", "layout.replicate": 2, "train.objective": "simpo"},
            'with train.objective = "simpo" replicas that join are not built',
        ),
    ],
)
def test_layouts_that_cannot_compare_pairs(
    fields: dict[str, Any], says: str, base: Path, tmp_path: Path
) -> None:
    rows = pair_peer.pair_rows(12)
    words = refused(table(tmp_path, base, rows, **fields, **{"cluster.accelerators": 2}))
    assert says in words


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"train.objective": "dqo"}, "Did you mean 'dpo'?"),
        ({"train.batch_tokens": 48}, "not a whole number of pairs of two sequences of 48 tokens"),
        ({"train.loss": "own.py:loss"}, 'objective = "dpo" has its own loss; remove one'),
        ({"train.preference.beta": 0}, "train.preference.beta"),
        ({"train.preference.label_smoothing": 0.5}, "train.preference.label_smoothing"),
        (
            {"train.objective": "ipo", "train.preference.label_smoothing": 0.1},
            'only for objective = "dpo" or "simpo"; remove it',
        ),
        (
            {"train.objective": "orpo", "train.preference.label_smoothing": 0.1},
            'only for objective = "dpo" or "simpo"; remove it',
        ),
        ({"train.preference.gamma": 1.0}, 'only for objective = "simpo"; remove it'),
        (
            {"train.objective": "ipo", "train.preference.gamma": 1.0},
            'only for objective = "simpo"; remove it',
        ),
        (
            {"train.objective": "orpo", "train.preference.gamma": 1.0},
            'only for objective = "simpo"; remove it',
        ),
        ({"train.objective": "simpo", "train.preference.gamma": -1}, "a number of at least 0"),
        (
            {"train.objective": "kto"},
            'train.objective = "kto": not built: its loss compares each answer with the mean over '
            "a batch",
        ),
        (
            {"train.objective": "next_token", "train.preference.gamma": 1.0},
            'write objective = "simpo" or remove it',
        ),
        (
            {"train.objective": "next_token", "train.preference.beta": 0.2},
            "only for an objective on pairs",
        ),
    ],
)
def test_fields_that_do_not_fit(
    fields: dict[str, Any], says: str, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(PenstockError) as raised:
        load_table(table(tmp_path, base, [GOOD]) | fields)
    assert says in str(raised.value)


def test_an_objective_has_defaults_of_its_own(base: Path, tmp_path: Path) -> None:
    fields = table(tmp_path, base, [GOOD])
    found = {name: load_table(fields | {"train.objective": name}).train for name in ON_PAIRS}
    values = {name: one.preference.model_dump(exclude_none=True) for name, one in found.items()}
    plain = {"beta": 0.1, "label_smoothing": 0.0}
    simpo = {"beta": 2.0, "gamma": 1.0, "label_smoothing": 0.0}
    assert values == {"dpo": plain, "ipo": plain, "simpo": simpo, "orpo": plain}
    given = load_table(fields | {"train.objective": "simpo", "train.preference.gamma": 0})
    assert (given.train.preference.beta, given.train.preference.gamma) == (2.0, 0.0)
    assert load_table(to_table(given)) == given  # as a resumed run reads it


def test_a_strength_of_another_objective_is_told(base: Path, tmp_path: Path) -> None:
    """As it stands after a change of the objective alone."""
    fields = table(tmp_path, base, pair_peer.pair_rows(8), **{"train.objective": "simpo"})
    fields["evaluate.holdout"] = 0
    odd = load_table(fields | {"train.preference.beta": 0.1})
    (told,) = [note for note in notes_of(verify(odd)) if "train.preference.beta = 0.1" in note]
    assert "small for simpo" in told
    warned = Warned()
    prepare(odd, LaunchRecord(), find_devices(), warned)
    assert told in warned.words
    assert not any("beta" in note for note in notes_of(verify(load_table(fields))))


def test_older_runs_on_pairs_keep_their_fingerprints() -> None:
    """Fields that other objectives have came later."""
    fields = {
        "name": "x",
        "model.from": "hf:org/name",
        "data.dataset": "p.jsonl",
        "data.sequence": 64,
        "train.batch_tokens": 128,
        "train.objective": "dpo",
    }
    default = "368f87d6a476682b107753358ce36ae2415fa6d8c1da03ce92c058725ecccd8c"
    assert fingerprint(load_table(fields)) == default
    other = "e92fb3467340532764108dd09552bae3354aac5fb63badce59ca393a79c42b44"
    assert fingerprint(load_table(fields | {"train.preference.beta": 0.3})) == other


def test_a_model_that_nothing_was_trained_into(base: Path, tmp_path: Path) -> None:
    for model in ({"preset": "llama-3m"}, {"module": "own.py:build"}):
        run = tmp_path / "run.toml"
        ((name, value),) = model.items()
        run.write_text(
            f'[model]\n{name} = "{value}"\n[train]\nobjective = "dpo"\nlearning_rate = 1e-3\n'
        )
        with pytest.raises(PenstockError, match=r"train.objective.*write model.from"):
            load(run)


def test_long_pairs_are_cut_or_kept_aside_and_told(base: Path, tmp_path: Path) -> None:
    long = GOOD | {"chosen": "word " * 60}
    asked = GOOD | {"prompt": "What " * 60}
    fields = table(
        tmp_path, base, [*pair_peer.pair_rows(8), long, asked], **{"evaluate.holdout": 0}
    )
    stream = pair_peer.stream_of(load_table(fields))
    assert stream.samples == 9
    notes = "\n".join(notes_of(verify(load_table(fields))))
    assert "1 of 10 rows of pairs were kept aside (1 prompt too long)" in notes
    assert "answers of 1 of 9 pairs of pairs are longer than data.sequence = 48" in notes


def test_messages_need_a_template(tmp_path: Path) -> None:
    bare = pair_peer.make_model("llama-3.1", tmp_path / "bare", template="")
    fields = table(tmp_path, bare, pair_peer.pair_rows(8))
    with pytest.raises(PenstockError, match="The tokenizer has no chat template"):
        start(load_table(fields))


def test_a_model_without_a_tokenizer(base: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(base, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    words = refused(table(tmp_path, bare, [GOOD] * 4))
    assert words.startswith(f"Tokenizer {bare}: there is no tokenizer.json, only ")
    assert "`AutoTokenizer.from_pretrained(...).save_pretrained(folder)`" in words
