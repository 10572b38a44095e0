"""What holds for every verdict: the document's own, never a crash, and moves with its bound."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean import batch
from penstock.data.clean.config import C4, Filters, FineWeb, GopherQuality, GopherRepetition
from penstock.data.clean.filters import run_filters

SENTENCES = [
    "The first of them is here to stay.",
    "It was said that we have to be with the others!",
    "- a bullet point",
    "• another one…",
    "Please enable JavaScript now.",
    "word word word word word word",
    "It's 10% of $5... #tag #tag",
    "Short.",
    "This line was cited.[1] And again.[2]",
    "{ code }.",
    "",
]
MADE = st.lists(st.sampled_from(SENTENCES), max_size=25).map("\n".join)
ANY = st.text(st.characters(exclude_categories=()), max_size=80)
ODD = st.sampled_from(
    ["\0" * 50, "\ud800\udfff", "(" * 5000, "a" * 50_000, ". " * 3000, "\n" * 5000, "\r\r\n\x85"]
)
TEXTS = st.lists(MADE | ANY | ODD, max_size=8)


@given(TEXTS, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_result_does_not_depend_on_other_documents(texts: list[str], rng: object) -> None:
    together = run_filters(texts, Filters())
    order = list(range(len(texts)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    shuffled = run_filters([texts[i] for i in order], Filters())
    for place, i in enumerate(order):
        alone = run_filters([texts[i]], Filters())
        assert alone.reason(0) == together.reason(i) == shuffled.reason(place)
        assert alone.texts[0] == together.texts[i] == shuffled.texts[place]
        for name, values in together.measures.items():
            assert alone.measures[name][0] == values[i] == shuffled.measures[name][place]
            assert np.isfinite(values[i])


def test_batches_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["\n".join(SENTENCES[i % 7 :] * (i % 5)) for i in range(600)]
    whole = run_filters(texts, Filters())
    monkeypatch.setattr(batch, "_CHARACTERS", 1000)
    cut = run_filters(texts, Filters())
    assert whole.broken.tolist() == cut.broken.tolist()
    assert all((cut.measures[k] == v).all() for k, v in whole.measures.items())
    assert whole.texts == cut.texts


def test_no_texts_give_no_results() -> None:
    verdicts = run_filters([], Filters())
    assert verdicts.texts == []
    assert verdicts.counts() == {"kept": 0}
    assert "gopher_repetition.top_2_words" in verdicts.measures


def test_counts_name_every_document() -> None:
    verdicts = run_filters(["", "too short to keep"], Filters())
    assert verdicts.counts() == {
        "kept": 0,
        "gopher_repetition.empty": 1,
        "gopher_repetition.top_2_words": 1,
    }


def test_no_filter_keeps_all_as_it_is() -> None:
    verdicts = run_filters(["a\n\n b ", ""], Filters(None, None, None, None))
    assert verdicts.kept.all()
    assert verdicts.texts == ["a\n\n b ", ""]
    assert verdicts.measures == {}


BOUNDS = [
    (part, field.name)
    for part in (GopherRepetition(), GopherQuality(), FineWeb(), C4())
    for field in fields(part)
    if isinstance(getattr(part, field.name), float | int)
    and not isinstance(getattr(part, field.name), bool)
    and field.name not in ("short_line_characters", "min_line_words", "max_word_characters")
]


def alone(part: object) -> Filters:
    off = Filters(None, None, None, None)
    name = {
        GopherRepetition: "gopher_repetition",
        GopherQuality: "gopher_quality",
        C4: "c4",
        FineWeb: "fineweb",
    }[type(part)]
    return replace(off, **{name: part})  # type: ignore[arg-type]


@pytest.mark.parametrize(("part", "field"), BOUNDS, ids=lambda x: x if isinstance(x, str) else "")
@given(texts=st.lists(MADE, min_size=1, max_size=6), factors=st.tuples(*[st.floats(0, 3)] * 2))
@settings(max_examples=8, deadline=None)
def test_a_looser_bound_keeps_no_less(
    part: object, field: str, texts: list[str], factors: tuple[float, float]
) -> None:
    default = getattr(part, field)
    low, high = sorted(default * factor for factor in factors)
    if field.startswith("min_"):
        low, high = high, low  # a lower least is the looser one
    tight = run_filters(texts, alone(replace(part, **{field: low})))  # type: ignore[type-var]
    loose = run_filters(texts, alone(replace(part, **{field: high})))  # type: ignore[type-var]
    off = run_filters(texts, alone(replace(part, **{field: None})))  # type: ignore[type-var]
    assert (tight.kept <= loose.kept).all()
    assert (loose.kept <= off.kept).all()


@pytest.mark.parametrize(("part", "field"), BOUNDS, ids=lambda x: x if isinstance(x, str) else "")
def test_each_bound_is_used(part: object, field: str) -> None:
    """A bound that nothing can meet drops a document that is kept without it."""
    kinds = ("first", "second", "other", "longest", "newest", "oldest")
    text = "\n".join(f"The {w} of them have to be with that word, said {w} men." for w in kinds)
    text += "\nx#... y\n\n- same…\n\n- same…"
    never = 1e9 if field.startswith("min_") else -1.0
    dropped = run_filters([text], alone(replace(part, **{field: never})))  # type: ignore[type-var]
    assert not dropped.kept[0]


def test_ngrams_can_have_other_sizes() -> None:
    config = alone(GopherRepetition(top=((1, 0.5),), duplicate=((3, 0.1),)))
    verdicts = run_filters(["one two three four five one two three"], config)
    assert verdicts.reason(0) == "gopher_repetition.duplicate_3_words"
    assert set(verdicts.measures) >= {"gopher_repetition.top_1_words"}
