"""What the plan knows of data is what the trainer will count."""

import re
from pathlib import Path

import numpy as np
import pytest

import made_plans as made
from made_sets import made_set
from penstock.data.build.open import open_dataset
from penstock.data.read.stream import Stream
from penstock.errors import PenstockError
from penstock.launch.prepare.prepare import settle_choices
from penstock.meter.devices import Devices
from penstock.plan import built
from penstock.plan.dataset import DatasetSizes, fitted, look, needed
from range_server import serve


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    where = tmp_path / "datasets"
    return {
        name: made_set(where, np.arange(count) % 300, [0], name=name, packed=packed)
        for name, count, packed in [("one", 4001, 0), ("two", 900, 0), ("packed", 2401, 48)]
    }


MIX = [{"dataset": "one", "weight": 3}, {"dataset": "two", "weight": 1}]


def test_a_mixture_has_the_sizes_of_its_stream(sets) -> None:
    run = made.run(data={"mix": MIX, "sequence": 16}, evaluate={"holdout": 0.1})
    stream = Stream([(sets["one"], 3), (sets["two"], 1)], 16, seed=0, holdout=0.1)
    assert look(run).sizes == DatasetSizes(300, stream.samples, 16 * stream.held_out)
    assert stream.held_out > 0


def test_a_mixture_with_a_part_that_is_not_built_has_none(sets) -> None:
    run = made.run(data={"mix": [*MIX, {"dataset": "nowhere", "weight": 1}], "sequence": 16})
    known = look(run)
    assert known.sizes is None
    (why,) = known.missing
    assert why.startswith("nowhere cannot be used here: Dataset 'nowhere' is not in")
    assert run.steps() == known.run.steps()


def test_epochs_of_a_mixture_are_refused(sets) -> None:
    run = made.run(data={"mix": MIX, "sequence": 16}, train={"epochs": 2})
    with pytest.raises(PenstockError, match="epochs of their own"):
        needed(run)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("/data/crawl/*.jsonl", "cannot be used here: .*names no file"),
        ("http://127.0.0.1:9/web@abc", "cannot be used here: .*cannot be reached: .*was tried for"),
        ("hf:org/name", "is built from the hub when the run starts"),
        ("recipe.toml", "cannot be used here: .*is no file in"),
        ("one@0123", "cannot be used here: .*There: one@[0-9a-f]{12}"),
        ("stdlib", "is not built here yet for this Python; `penstock train` builds it"),
    ],
)
def test_what_is_not_built_is_told(sets, spec: str, why: str, monkeypatch) -> None:
    monkeypatch.setattr(built, "_PATIENCE_S", 0.1)
    known = look(made.run(data={"dataset": spec, "sequence": 16}))
    assert known.sizes is None
    assert re.match(f"{re.escape(spec)} {why}", known.missing[0])
    assert "as if there were data enough" in known.notes[0]


def test_a_vocabulary_that_only_the_dataset_tells(sets) -> None:
    shape = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128}
    run = made.run(model=shape, data={"dataset": "nowhere", "sequence": 16})
    with pytest.raises(
        PenstockError, match=r"model\.vocab: not given.*Dataset 'nowhere' is not in"
    ):
        needed(run)
    assert needed(made.run(model=shape, data={"dataset": "one", "sequence": 16})).sizes


def test_a_batch_larger_than_the_data_is_refused_as_a_launch_refuses_it(sets) -> None:
    """A plan of another machine, whose data may lie there, gets a note with the same words."""
    machine = Devices("cpu", 2, "", "", 8 << 30)
    for data, words in (({"dataset": "one"}, "more than one@"), ({"dataset": "two"}, "too small")):
        table = {"sequence": 1000, **data}
        run = made.run(data=table, train={"tokens": "1M", "batch_tokens": 4000}, cluster={})
        with pytest.raises(PenstockError, match=words) as launched:
            settle_choices(run, [sets[data["dataset"]].manifest], machine)
        with pytest.raises(PenstockError) as planned:
            needed(run)
        assert str(planned.value) == str(launched.value)
        elsewhere = made.run(data=table, train={"tokens": "1M", "batch_tokens": 4000})
        (note,) = needed(elsewhere).notes
        assert note.startswith(f"data: {str(launched.value).rstrip('.')}; planned as if")


def test_a_name_with_several_versions(sets, tmp_path: Path) -> None:
    made_set(tmp_path / "datasets", np.arange(50) % 300, [0], name="one")
    (why,) = look(made.run(data={"dataset": "one", "sequence": 16})).missing
    assert re.search(r"has several versions(.|\n)*one@[0-9a-f]{12}(.|\n)*one@", why)


def test_a_folder_and_a_url_of_a_built_dataset_are_read(sets, tmp_path: Path) -> None:
    expected = look(made.run(data={"dataset": "packed"}, train={"tokens": "1M"}))
    assert expected.run.sequence == 48
    folder = sets["packed"].folder
    with serve(folder) as (url, _):
        for spec in (str(folder), folder.as_uri(), url):
            known = look(made.run(data={"dataset": spec}, train={"tokens": "1M"}))
            assert (known.sizes, known.run.sequence) == (expected.sizes, 48)
            assert known.notes == ()
        (why,) = look(made.run(data={"dataset": f"{url}/raw", "sequence": 16})).missing
        assert "holds no built dataset; `penstock train` builds one" in why


def test_what_lies_at_a_path_goes_before_a_name(sets, tmp_path: Path, monkeypatch) -> None:
    """As it does when the run starts."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "text.txt").write_text("not tokens")
    monkeypatch.chdir(tmp_path)
    (why,) = look(made.run(data={"dataset": "one", "sequence": 16})).missing
    assert why == "one is not built here yet; `penstock train` builds it"


def test_raw_files_and_recipes_are_known_once_they_are_built(sets, tmp_path, monkeypatch) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text(
        "".join(f"Sentence {n} of a text. " for n in range(200))
    )
    (tmp_path / "r.toml").write_text(
        'name = "small"\n[[source]]\npath = "raw"\n'
        '[clean]\npreset = "none"\n[tokens]\nvocab = 300\n'
    )
    monkeypatch.chdir(tmp_path)
    run = made.run(data={"dataset": "r.toml", "sequence": 16})
    assert look(run).missing == (
        "r.toml is not built here yet; `penstock data build r.toml` builds it now",
    )
    dataset = open_dataset("r.toml")
    assert look(run).sizes.vocab == dataset.vocab
    raw = made.run(data={"dataset": "raw", "sequence": 16})
    assert look(raw).missing
    shape = raw.model.base()
    vocab = (shape.vocab if shape else None) or None
    dataset = open_dataset("raw", None, raw.model.from_, vocab)
    assert look(raw).sizes.vocab == dataset.vocab
    (tmp_path / "raw" / "b.txt").write_text("Other words.")
    assert look(raw).missing


def test_a_mixture_packed_for_two_lengths_is_refused(sets, tmp_path: Path) -> None:
    made_set(tmp_path / "datasets", np.arange(990) % 300, [0], name="long", packed=96)
    parts = [{"dataset": name, "weight": 1} for name in ("packed", "one", "long")]
    with pytest.raises(PenstockError, match="packed for 48 and long for 96 tokens"):
        look(made.run(data={"mix": parts}, train={"tokens": "1M"}))
    mixed = look(made.run(data={"mix": parts[:2]}, train={"tokens": "1M"}))
    assert mixed.run.sequence == 48


def test_a_packed_dataset_decides_the_sequence_unless_the_file_does(sets) -> None:
    manifest = sets["packed"].manifest
    run = made.run(data={"dataset": "packed"}, train={"tokens": "1M"})
    assert fitted(run, [manifest]).sequence == 48
    assert look(run).sizes.samples == Stream(sets["packed"], 48, 0, run.evaluate.holdout).samples
    given = made.run(data={"dataset": "packed", "sequence": 16}, train={"tokens": "1M"})
    assert fitted(given, [manifest]) == given
    batch = made.run(data={"dataset": "packed"}, train={"tokens": "1M", "batch_tokens": 4096})
    with pytest.raises(PenstockError, match=r"write 4080 or 4128.*packed for sequences of 48"):
        fitted(batch, [manifest])
