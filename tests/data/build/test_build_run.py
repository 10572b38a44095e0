"""What a build makes of documents: every one is in the dataset or counted with its reason."""

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build_corpus import recipe, text, write_corpus

from penstock.data.build import build as build_module
from penstock.data.build.build import build
from penstock.data.build.progress import SilentWatcher
from penstock.data.build.publish import ASIDE
from penstock.data.build.record import BuildRecord, parse_build_record, read_build_record
from penstock.data.format.manifest import BUILD_RECORD
from penstock.data.read.dataset import Dataset
from penstock.data.read.stream import Stream
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build_module, "PART_BYTES", 4000)


def rows_and_texts(dataset: Dataset) -> list[tuple[dict[str, object], str]]:
    """Each document with its row, in the order of the dataset."""
    tokenizer = Tokenizer(dataset.tokenizer_json())
    found = []
    for shard in range(len(dataset.manifest.shards)):
        starts = dataset.document_starts(shard).tolist()
        first = sum(one.tokens for one in dataset.manifest.shards[:shard])
        ends = [*starts[1:], first + dataset.manifest.shards[shard].tokens]
        rows = dataset.rows(shard)
        assert len(rows) == len(starts)
        for row, start, end in zip(rows, starts, ends, strict=True):
            tokens = dataset.read(start, end)
            assert tokens[-1] == tokenizer.end
            assert (tokens[:-1] != tokenizer.end).all()
            found.append((row, tokenizer.decode(tokens[:-1])))
    return found


def record_of(dataset: Dataset) -> BuildRecord:
    record = read_build_record(dataset.folder)
    assert record is not None
    return record


def test_every_document_is_there_or_counted(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    dataset = build(recipe(corpus), workers=1)
    assert dataset.verify() == []
    assert len(dataset.manifest.shards) > 1 or dataset.manifest.shards[0].bytes <= 16 << 10
    found = {str(row["id"]): told for row, told in rows_and_texts(dataset)}
    for file, name in ((0, "0.jsonl"), (1, "deep/1.jsonl"), (2, "2.jsonl")):
        for place in range(2, 20):
            assert found[f"{name}:{place + 1}"] == text(1000 * file + place)
    assert sum("<EMAIL>" in told for told in found.values()) == 1
    counts = dataset.manifest.counts
    assert counts["read"] == {"kept": 69, "broken JSON": 3}
    # Of each file's first text one stays, of its second one, and one mail of all.
    assert counts["deduplicate"] == {"kept": 61, "copy": 3 + 2, "near copy": 3}
    assert len(found) == dataset.documents == counts["tokenize"]["kept"]


def test_the_record_describes_the_build(tmp_path: Path) -> None:
    dataset = build(recipe(write_corpus(tmp_path / "corpus")), workers=1)
    record = record_of(dataset)
    assert record.dataset == dataset.id
    for stage in record.stages:
        assert stage.documents == stage.kept + sum(stage.reasons.values())
    assert [stage.name for stage in record.stages][:4] == [
        "read",
        "clean",
        "deduplicate",
        "tokenize",
    ]
    assert sum(record.tokens) == sum(record.characters) == dataset.documents
    assert sum(record.scores) == 69
    assert record.changes["personal.email"] == 3
    assert record.sources[0].rejected == {"broken JSON": 3}
    assert len(record.kept) == 24
    assert {sample.id for sample in record.kept} <= {
        str(row["id"]) for row, _ in rows_and_texts(dataset)
    }
    assert record.dropped["deduplicate: copy"][0].detail.startswith("of document")
    aside = [json.loads(line) for line in (dataset.folder / ASIDE).read_text().splitlines()]
    assert [one["reason"] for one in aside] == ["broken JSON"] * 3
    assert parse_build_record(record.to_json(), "here") == record
    (dataset.folder / BUILD_RECORD).write_text("{}")
    with pytest.raises(PenstockError, match="cannot be read as the record of a build"):
        read_build_record(dataset.folder)


def test_filters_and_language_say_why(tmp_path: Path) -> None:
    texts = [*(text(seed, 12) for seed in range(8)), "Kurz.", "Le chat est sur la table. " * 30]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": one}) for one in texts))
    clean = {"preset": "web", "gopher_quality": {"min_words": 40}, "c4": False}
    loose = {"gopher_repetition": False, "fineweb": False, "language": {"keep": ["en"], "least": 0}}
    dataset = build(recipe(tmp_path / "a.jsonl", clean=clean | loose), workers=1)
    counts = dataset.manifest.counts["clean"]
    assert counts["language.other"] == 2 or counts["gopher_quality.few_words"] == 1
    assert sum(counts.values()) == len(texts)
    record = record_of(dataset)
    assert record.languages["en"] == dataset.documents
    assert any(sample.detail for some in record.dropped.values() for sample in some)


def test_copies_follow_the_score(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=1, documents=60)
    label = {"use": "score", "least": 0.05, "copies": [[0.0, 1], [0.2, 3], [0.4, 0.5]]}
    dataset = build(recipe(corpus, label=label, dedup={"near": False}), workers=1)
    counted: dict[int, int] = {}
    places: dict[int, list[int]] = {}
    for place, (row, _) in enumerate(rows_and_texts(dataset)):
        n = int(row["columns"]["n"])  # type: ignore[index]
        counted[n] = counted.get(n, 0) + 1
        places.setdefault(n, []).append(place)
    assert min(counted) == 5
    assert all(counted[n] == 1 for n in range(5, 20))
    assert all(counted[n] == 3 for n in range(20, 40))
    assert {counted[n] for n in range(40, 60) if n in counted} == {1}
    assert 3 < sum(n in counted for n in range(40, 60)) < 17
    # Copies of one document lie apart.
    assert np.mean([np.diff(sorted(places[n])).min() for n in range(20, 40)]) > 3
    assert dataset.manifest.counts["clean"]["label.low_score"] == 5
    assert dataset.manifest.counts["sample"]["label.copies"] > 3


def test_evaluations_and_lines_are_removed(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": text(7).split("\n")[2] * 3}))
    first = text(7).split("\n")[0]
    (corpus / "lines.jsonl").write_text(
        json.dumps({"text": f"{first}\n{text(90001)}", "score": 0})
        + "\n"
        + json.dumps({"text": first, "score": 0})
    )
    changes = {
        "decontaminate": {"against": [str(tmp_path / "eval.jsonl")], "words": 8, "shortest": 5},
        "dedup": {"lines": {"on": True, "characters": 20}},
        "label": {"use": "score"},  # a line stays where the score is best
    }
    dataset = build(recipe(corpus, **changes), workers=1)
    found = {str(row["id"]): told for row, told in rows_and_texts(dataset)}
    assert "0.jsonl:8" not in found
    assert dataset.manifest.counts["decontaminate"]["in evaluation eval.jsonl"] == 1
    assert found["lines.jsonl:1"] == text(90001)
    assert "lines.jsonl:2" not in found
    assert dataset.manifest.counts["deduplicate"]["only lines of others"] == 1
    (tmp_path / "eval.jsonl").write_text(json.dumps({"other": "x"}))
    with pytest.raises(PenstockError, match="has no text in any of the fields"):
        build(recipe(corpus, **changes), workers=1)


def test_a_classifier_is_trained_from_examples(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", files=1)
    bad = ["buy cheap now click here free offer " * 4 + str(n) for n in range(20)]
    (corpus / "bad.jsonl").write_text("\n".join(json.dumps({"text": one}) for one in bad[10:]))
    for name, texts in (("good", [text(n) for n in range(70, 90)]), ("bad", bad)):
        lines = "\n".join(json.dumps({"text": one}) for one in texts)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    label = {"good": [str(tmp_path / "good.jsonl")], "bad": [str(tmp_path / "bad.jsonl")]}
    dataset = build(recipe(corpus, label={**label, "least": 0.5}), workers=1)
    assert dataset.manifest.counts["clean"]["label.low_score"] == 10
    assert not any("cheap" in told for _, told in rows_and_texts(dataset))
    assert "classifier" in dataset.manifest.lineage


def test_packed_documents_are_complete_in_their_bins(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    plain = build(recipe(corpus), workers=1)
    packed = build(recipe(corpus, tokens={"vocab": 400, "pack": 512}), workers=1)
    assert packed.manifest.packed == 512
    assert packed.tokens % 512 == 1  # the last target of the last bin
    assert Stream(packed, 512, seed=0, holdout=0).samples == packed.tokens // 512
    assert plain.manifest.tokenizer == packed.manifest.tokenizer
    end = Tokenizer(packed.tokenizer_json()).end
    texts = {str(row["id"]): told for row, told in rows_and_texts(plain)}
    for shard in range(len(packed.manifest.shards)):
        starts = packed.document_starts(shard)
        for row, start in zip(packed.rows(shard), starts.tolist(), strict=True):
            tokens = packed.read(start, (start // 512 + 1) * 512)
            told = tokens[: int(np.argmax(tokens == end))]
            assert Tokenizer(packed.tokenizer_json()).decode(told) == texts[str(row["id"])]
    mask = packed.loss_mask(np.array([0]), packed.tokens)
    assert mask is not None
    assert not mask[0][::512].any()
    counted = sum(len(Tokenizer(plain.tokenizer_json()).encode(t)) + 1 for t in texts.values())
    assert mask.sum() == counted - np.count_nonzero(mask[0][:-1:512] == 0)


def test_conversations_are_cleaned_and_masked(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Mail to me@example.org about {text(n, 2)}"},
                {"role": "assistant", "content": f"{text(100 + n, 2)}"},
            ]
        }
        for n in range(6)
    ]
    lines = [json.dumps(row) for row in [*rows, {"messages": []}, {"messages": "no"}]]
    (tmp_path / "chat.jsonl").write_text("\n".join(lines))
    source = [{"path": str(tmp_path / "chat.jsonl"), "messages": "messages"}]
    dataset = build(recipe(tmp_path, source=source), workers=1)
    assert dataset.documents == 6
    assert sum(dataset.manifest.counts["read"].values()) == 8
    tokenizer = Tokenizer(dataset.tokenizer_json())
    mask = dataset.loss_mask(np.array([0]), dataset.tokens)
    assert mask is not None
    learned = tokenizer.decode(dataset.read(0, dataset.tokens)[mask[0]])
    everything = tokenizer.decode(dataset.read(0, dataset.tokens))
    assert "Mail" not in learned
    assert everything.count("<EMAIL>") == 6
    assert "example.org" not in everything
    for n in range(6):
        assert text(100 + n, 2) in learned
    assert "conversation" not in dataset.rows(0)[0]["columns"]


def test_nothing_left_says_why(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    with pytest.raises(
        PenstockError,
        match=r"every document was dropped. Of 69 that were read: 69 by label.low_score. Loosen",
    ):
        build(recipe(corpus, label={"least": 1.1}), workers=1)
    wrong = [{"path": str(corpus / "0.jsonl"), "text": "txt"}]
    with pytest.raises(
        PenstockError, match=r"no text .*0\.jsonl, line 1: no text \(no field 'txt'; found text"
    ):
        build(recipe(corpus, source=wrong), workers=1)
    source = [{"path": str(corpus), "name": "a"}, {"path": str(corpus), "name": "a"}]
    with pytest.raises(PenstockError, match="two sources have the name 'a'"):
        build(recipe(corpus, source=source), workers=1)


@pytest.mark.parametrize("tokenizer", ["train", "loaded"])
def test_nothing_left_names_the_steps_that_dropped_it(tmp_path: Path, tokenizer: str) -> None:
    """Also where a step after cleaning dropped the rest, before and after tokens are made."""
    corpus = write_corpus(tmp_path / "corpus")
    tokens = {}
    if tokenizer == "loaded":
        made = build(recipe(corpus), workers=1)
        tokens = {"tokens": {"tokenizer": str(made.folder / "tokenizer.json")}}
    documents = [
        json.loads(line) for f in corpus.rglob("*.jsonl") for line in f.open() if "}" in line
    ]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    (corpus / "short.jsonl").write_text(
        '{"text": "Two words."}\n{"text": "Four words are here."}\n'
    )
    against = {"decontaminate": {"against": [str(tmp_path / "quiz.jsonl")]}}
    shut = dict.fromkeys(("min_stop_words", "min_alphabetic_words"), False)
    words = {"on": True, "min_words": 6, "min_word_characters": False, **shut}
    filters = {"clean": {"preset": "code", "gopher_quality": words}}
    with pytest.raises(PenstockError) as refused:
        build(recipe(corpus, **against, **filters, **tokens), workers=1)
    said = str(refused.value)
    assert "every document was dropped. Of 71 that were read: " in said
    order = [
        "by decontaminate (against quiz.jsonl)",
        "by deduplicate (copy)",
        "by gopher_quality.few_words",
    ]
    places = [said.index(step) for step in order]
    assert places == sorted(places)
    assert "[decontaminate] against" in said


class _Notes(SilentWatcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_files_and_sources_without_documents_are_reported(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    other = tmp_path / "other.jsonl"
    other.write_text('{"body": "a"}\n' * 5)
    torn = tmp_path / "torn.jsonl.gz"
    row = json.dumps({"text": text(7)}) + "\n"
    torn.write_bytes(gzip.compress(row.encode() * 40)[:-9])
    source = [{"path": str(path)} for path in (corpus, other, torn)]
    watcher = _Notes()
    build(recipe(corpus, source=source), workers=1, watcher=watcher)
    told = [note for note in watcher.notes if note.startswith("warning")]
    assert "warning: other.jsonl: other.jsonl gave no document: no text (5)" in told
    assert "warning: other.jsonl: the source gave no document" in told
    assert any("torn.jsonl.gz: truncated gzip; " in note for note in told)
    assert not any("corpus" in note for note in told)


@pytest.mark.parametrize(
    ("clean", "names"),
    [
        ({"preset": None}, "boilerplate, language, gopher_repetition, gopher_quality, c4, fineweb"),
        ({"preset": None, "c4": False, "fineweb": False}, "gopher_repetition, gopher_quality)"),
        ({"preset": "web"}, ""),
        ({"preset": "code"}, ""),
    ],
)
def test_filters_that_apply_by_default_are_named(
    tmp_path: Path, clean: dict[str, Any], names: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Kurz.")  # too short, and not English
    watcher = _Notes()
    with contextlib.suppress(PenstockError):  # where it is dropped
        build(recipe(file, clean=clean), workers=1, watcher=watcher)
    told = [note for note in watcher.notes if "names no preset" in note]
    assert len(told) == bool(names)
    assert all(names in note and 'preset = "code"' in note for note in told)


def test_default_filters_that_drop_everything_are_named_with_a_fix(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Kurz.")
    with pytest.raises(PenstockError, match=r"was dropped.*names no preset.*preset = .code. in"):
        build(recipe(file, clean={"preset": None}), workers=1)


def test_every_step_has_a_name_of_its_own_and_is_reported_whole(tmp_path: Path) -> None:
    told: list[list[object]] = []

    class Told(SilentWatcher):
        def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
            told.append([name, total_documents, 0])

        def did(self, documents: int, bytes: int) -> None:
            assert documents >= 0
            assert bytes >= 0
            told[-1][2] += documents  # type: ignore[operator]

    on = {"lines": {"on": True}}
    build(recipe(write_corpus(tmp_path / "corpus"), dedup=on), workers=1, watcher=Told())
    names = [str(name) for name, _, _ in told]
    assert len(set(names)) == len(names), "two steps with one name look like one that runs twice"
    assert max(map(len, names)) <= 26, "the column of the progress"
    for step in ("find copies", "find lines", "find near", "list near"):
        assert f"deduplicate: {step}" in names
    for name, total, done in told:
        if str(name).startswith("deduplicate"):
            assert done == total, name


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tokens": {"chat_template": "/no/such.jinja"}}, "chat_template = '/no/such.jinja'"),
        ({"tokens": {"tokenizer": "/no/such/folder"}}, "'/no/such/folder' is neither"),
        ({"decontaminate": {"against": ["/no/such.jsonl"]}}, "decontaminate.against: /no/such"),
        ({"label": {"good": ["/no/a"], "bad": ["/no/b"]}}, "label.good: /no/a"),
    ],
    ids=["template", "tokenizer", "evaluation", "examples"],
)
def test_a_wrong_path_is_refused_before_anything_is_read(
    tmp_path: Path, changes: dict[str, dict[str, object]], what: str
) -> None:
    stages: list[str] = []

    class Watches(SilentWatcher):
        def stage(self, name: str, total_bytes: int, total_documents: int | None) -> None:
            stages.append(name)

    corpus = write_corpus(tmp_path / "corpus", files=1)
    with pytest.raises(PenstockError, match=what):
        build(recipe(corpus, **changes), workers=1, watcher=Watches())
    assert "read" not in stages


def test_long_columns_are_cut_in_samples_only(tmp_path: Path) -> None:
    row = {"text": text(1), "html": "x" * 5000}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    dataset = build(recipe(tmp_path / "a.jsonl"), workers=1)
    assert dataset.rows(0)[0]["columns"]["html"] == row["html"]
    assert len(str(record_of(dataset).kept[0].columns["html"])) < 400
