"""The heuristic's formula, which score decides, why documents go, and how often the rest appear."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean.config import Filters
from penstock.data.clean.filters import run_filters
from penstock.data.label import heuristic
from penstock.data.label.classifier import ClassifierConfig, train_classifier
from penstock.data.label.scores import LabelConfig, count_copies, label_texts
from penstock.errors import PenstockError

PROSE = "\n".join(
    f"The boats of the year {n} came back to the harbour early, and nobody who was with them could "
    f"say what it was that they have seen {n * 7} miles from the coast." for n in range(12)
)  # fmt: skip
MENU = "\n".join(["Home", "Shop now", "Cart 0", "$ 9.99", "Log in"] * 8)


def test_prose_is_better_than_a_menu() -> None:
    prose, menu, none = heuristic.score_texts([PROSE, MENU, ""], {}).tolist()
    assert prose > 750
    assert menu < 300
    assert none == 0


def test_measures_of_the_filters_are_used() -> None:
    texts = [PROSE, MENU, PROSE[:200]]
    measures = run_filters(texts, Filters(c4=None)).measures
    assert (
        heuristic.score_texts(texts, measures).tolist() == heuristic.score_texts(texts, {}).tolist()
    )
    better = measures | {"fineweb.short_lines": np.zeros(3)}
    assert (
        heuristic.score_texts(texts, better)[1] == heuristic.score_texts(texts, measures)[1] + 100
    )


UNIT = st.integers(0, 1000).map(lambda n: n / 1000)
VALUES = st.tuples(UNIT, st.integers(0, 8), UNIT, UNIT, UNIT, st.integers(0, 2000))


@given(st.lists(VALUES, min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_the_score_is_the_documented_formula(rows: list[tuple[float, ...]]) -> None:
    columns = np.array(rows, np.float64).T
    measures = dict(zip(heuristic.NEEDED_MEASURES, columns, strict=True))
    # (weight, nothing at, full at), as the table of the module says
    table = [(20, "0.6", "0.9"), (20, "1", "6"), (20, "0.05", "0.6"), (20, "0.2", "0.01"),
             (10, "0.7", "0.2"), (10, "30", "500")]  # fmt: skip
    found = heuristic.score_texts([""] * len(rows), measures)
    for row, score in zip(rows, found.tolist(), strict=True):
        want = Fraction(0)
        for value, (weight, nothing, full) in zip(row, table, strict=True):
            low, high = Fraction(nothing), Fraction(full)
            way = (Fraction(str(value)) - low) / (high - low)
            want += weight * min(max(way, Fraction(0)), Fraction(1)) * 10
        if row[-1] == 0:
            want = Fraction(0)
        assert 0 <= want - score < 2  # each part, and the whole, are rounded down


@given(st.permutations([PROSE, MENU, "", PROSE[:300]]))
@settings(max_examples=10, deadline=None)
def test_a_heuristic_score_depends_on_its_text_alone(texts: list[str]) -> None:
    alone = [int(heuristic.score_texts([text], {})[0]) for text in texts]
    assert heuristic.score_texts(texts, {}).tolist() == alone


def test_the_heuristic_decides() -> None:
    found = label_texts([PROSE, MENU], {}, [{}, {}], LabelConfig(least=0.5))
    assert found.kept.tolist() == [True, False]
    assert [found.reason(i) for i in range(2)] == [None, "label.low_score"]
    assert found.scores.tolist() == found.labels["quality.heuristic"].tolist()


def test_the_classifier_decides_and_the_heuristic_is_reported() -> None:
    model = train_classifier(
        [PROSE[n : n + 200] for n in range(0, 900, 30)],
        [f"{MENU[n : n + 60]} {n}" for n in range(30)],
        ClassifierConfig(bits=12),
    )
    texts = [PROSE, MENU]
    measures = run_filters(texts, Filters()).measures
    found = label_texts(texts, measures, [{}, {}], LabelConfig("classifier", 0.5), model)
    assert found.scores.tolist() == model.scores(texts).tolist()
    assert found.kept.tolist() == [True, False]
    assert set(found.labels) == {"quality.classifier", "quality.heuristic"}
    with pytest.raises(PenstockError, match="`good` and `bad`"):
        label_texts(texts, measures, [{}, {}], LabelConfig("classifier"))


def test_a_column_decides_and_rows_without_a_number_are_dropped() -> None:
    values: list[object] = [3.7, 2, 0, "4", True, None, float("nan"), float("inf"), -1.5]
    columns = [{"edu": value} for value in values] + [{}]
    found = label_texts([PROSE] * 10, {}, columns, LabelConfig("edu", 1.9))
    low, none = "label.low_score", "label.no_score"
    assert [found.reason(i) for i in range(10)] == [
        None, None, low, none, none, none, none, none, low, none,
    ]  # fmt: skip
    assert found.scores.tolist() == [3700, 2000, 0, 0, 0, 0, 0, 0, -1500, 0]
    assert found.labels == {}


def test_a_score_at_the_bound_is_kept() -> None:
    found = label_texts(["a", "b"], {}, [{"s": 0.3}, {"s": 0.2994}], LabelConfig("s", 0.3))
    assert found.kept.tolist() == [True, False]


def test_an_empty_list_of_texts_is_labelled() -> None:
    found = label_texts([], {}, [], LabelConfig())
    assert found.scores.shape == found.broken.shape == (0,)


IDS = [f"file-{n}.jsonl:{n * 31}" for n in range(4000)]


def test_whole_copies_are_exact_at_the_steps() -> None:
    scores = np.array([-5, 0, 299, 300, 799, 800, 1000])
    table = ((0.0, 0.0), (0.3, 1.0), (0.8, 3.0))
    assert count_copies(IDS[:7], scores, table).tolist() == [1, 0, 0, 1, 1, 3, 3]


@pytest.mark.parametrize("count", [0.1, 0.5, 1.25, 2.9])
def test_fractions_of_copies_are_right_on_average(count: float) -> None:
    found = count_copies(IDS, np.full(len(IDS), 500), ((0.0, count),))
    assert set(found.tolist()) == {int(count), int(count) + 1}
    assert abs(found.mean() - count) < 4 * 0.5 / len(IDS) ** 0.5


@given(
    st.lists(st.text(max_size=12), max_size=20),
    st.floats(0, 5, allow_nan=False),
    st.floats(0, 5, allow_nan=False),
)
@settings(max_examples=100, deadline=None)
def test_more_copies_never_lose_a_document(ids: list[str], one: float, other: float) -> None:
    less, more = sorted([one, other])
    scores = np.zeros(len(ids), np.int64)
    few, many = count_copies(ids, scores, ((0.0, less),)), count_copies(ids, scores, ((0.0, more),))
    assert (few <= many).all()
    assert ((few >= int(less)) & (few <= int(less) + 1)).all()
    assert few[::-1].tolist() == count_copies(ids[::-1], scores, ((0.0, less),)).tolist()


def test_the_draw_is_the_same_everywhere() -> None:
    """A change here changes datasets."""
    found = count_copies(IDS[:24], np.zeros(24, np.int64), ((0.0, 0.5),))
    assert "".join(map(str, found.tolist())) == "111111001011111011001111"


def test_wrong_tables_are_refused() -> None:
    with pytest.raises(PenstockError, match="rising"):
        LabelConfig(copies=((0.5, 1), (0.2, 2)))
    with pytest.raises(PenstockError, match="below 0"):
        LabelConfig(copies=((0.5, -1),))


def test_only_the_beginning_of_a_long_text_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristic, "CHARACTERS", len(PROSE))
    long, short = heuristic.score_texts([PROSE + "\n" + MENU * 50, PROSE], {}).tolist()
    assert long == short
