"""The classifier: it learns, whole numbers throughout, from the examples alone."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.label import classifier, logistic
from penstock.data.label.classifier import Classifier, ClassifierConfig, train_classifier
from penstock.data.label.features import CHARACTERS, extract_features
from penstock.errors import PenstockError

SMALL = ClassifierConfig(bits=14)
SEA = "harbour boat lamp tide pier gull rope sail moon coast net storm".split()  # noqa: SIM905
SHOP = "buy cheap sale now click offer best price deal free win bonus".split()  # noqa: SIM905
BOTH = "the a and of to in it was for on with as".split()  # noqa: SIM905


def made(words: list[str], count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    every = words + BOTH * 3
    return [" ".join(rng.choices(every, k=rng.randint(15, 80))) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> Classifier:
    return train_classifier(made(SEA, 200, 1), made(SHOP, 200, 2), SMALL)


def test_it_tells_good_from_bad(model: Classifier) -> None:
    good, bad = model.scores(made(SEA, 200, 3)), model.scores(made(SHOP, 200, 4))
    assert (good > 500).mean() > 0.97
    assert (bad < 500).mean() > 0.97
    assert model.held_out.good == model.held_out.bad == 40
    assert model.held_out.accuracy > 0.95


def test_pairs_decide_when_the_words_are_the_same() -> None:
    def pages(order: str, seed: int) -> list[str]:
        rng = random.Random(seed)
        pairs = [f"{a} {b}" if order == "ab" else f"{b} {a}" for a in SEA[:6] for b in SHOP[:6]]
        return [" the ".join(rng.choices(pairs, k=25)) for _ in range(150)]

    model = train_classifier(pages("ab", 1), pages("ba", 2), SMALL)
    assert (model.scores(pages("ab", 3)) > 500).mean() > 0.95
    assert (model.scores(pages("ba", 4)) < 500).mean() > 0.95


def test_the_weights_are_the_same_on_every_machine(model: Classifier) -> None:
    """A change here changes datasets: raise `REVISION`, then write the new value."""
    assert model.identity()[:16] == "4213d6d4980c21de"


def test_neither_order_nor_copies_of_examples_matter(model: Classifier) -> None:
    good, bad = made(SEA, 200, 1), made(SHOP, 200, 2)
    again = train_classifier([*reversed(good), *good[:50]], [*bad[100:], *bad[:100]], SMALL)
    assert again.to_bytes() == model.to_bytes()


def test_an_uneven_number_of_examples_does_not_shift_the_middle() -> None:
    few = train_classifier(made(SEA, 40, 1), made(SHOP, 800, 2), SMALL)
    assert (few.scores(made(SEA, 200, 3)) > 500).mean() > 0.9
    assert (few.scores(made(SHOP, 200, 4)) < 500).mean() > 0.9


def test_scores_do_not_claim_more_than_the_examples_show() -> None:
    """With labels by chance there is nothing to learn, and nothing is sure."""
    every = made(SEA, 400, 1)
    scores = train_classifier(every[:200], every[200:], SMALL).scores(made(SEA, 200, 3))
    assert ((scores > 350) & (scores < 650)).mean() > 0.95


def test_repeating_a_word_changes_nothing(model: Classifier) -> None:
    text = "the boat and the boat and the boat"
    assert model.scores([text]).tolist() == model.scores([text + " and the boat" * 500]).tolist()


def test_only_the_beginning_of_a_long_text_is_read(model: Classifier) -> None:
    text = (" ".join(SEA) + " ") * (CHARACTERS // 60)
    assert model.scores([text[:CHARACTERS] + " ".join(SHOP)]) == model.scores([text[:CHARACTERS]])


@pytest.mark.parametrize("text", ["", " \n", "!!! ... ---"])
def test_a_text_without_words_scores_0(model: Classifier, text: str) -> None:
    assert model.scores([text]).tolist() == [0]


@given(st.lists(st.text(max_size=80) | st.sampled_from(made(SEA, 20, 9)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_score_depends_on_its_text_alone(model: Classifier, texts: list[str]) -> None:
    together = model.scores(texts)
    assert together.dtype == np.int64
    assert together.tolist() == [int(model.scores([text])[0]) for text in texts]
    assert ((together >= 0) & (together <= 1000)).all()


@given(st.lists(st.lists(st.sampled_from(SEA[:4]), max_size=6).map(" ".join), max_size=5))
@settings(max_examples=60, deadline=None)
def test_features_are_the_different_words_and_pairs(texts: list[str]) -> None:
    found = extract_features(texts, 20)
    for place, text in enumerate(texts):
        words = text.split()
        want = {(w,) for w in words} | set(pairwise(words))
        extra = 1 if len(words) == 1 else 0  # the pair of one word
        assert len(found.of_text(place)) == len(want) + extra
        assert (np.diff(found.of_text(place)) > 0).all()


def test_it_comes_back_from_bytes(model: Classifier) -> None:
    again = Classifier.from_bytes(model.to_bytes())
    texts = made(SEA + SHOP, 50, 5)
    assert again.scores(texts).tolist() == model.scores(texts).tolist()
    assert again.held_out == model.held_out
    assert again.identity() == model.identity()


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"x" + b, lambda b: b[:40]])
def test_damaged_bytes_are_refused(model: Classifier, damage) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PenstockError, match="not a complete classifier"):
        Classifier.from_bytes(damage(model.to_bytes()))


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(PenstockError, match=r"1 different good examples.*label\.good"):
        train_classifier(["the same"] * 50, made(SHOP, 50, 1))
    with pytest.raises(PenstockError, match=r"label\.bad"):
        train_classifier(made(SEA, 50, 1), [])


def test_more_examples_than_wanted_are_left_out() -> None:
    config = ClassifierConfig(bits=14, most_examples=50)
    assert train_classifier(made(SEA, 300, 1), made(SHOP, 300, 2), config).held_out.good == 10


@given(st.integers(0, 1 << 35))
@settings(max_examples=200, deadline=None)
def test_roots_are_exact(count: int) -> None:
    assert logistic.fixed_sqrt(np.array([count]))[0] == max(math.isqrt(count << 16), 1)


def test_tables_are_those_of_the_functions() -> None:
    margins = np.arange(-14 * 65536, 14 * 65536, 999)
    want = 65536 / (1 + np.exp(-margins / 65536))
    assert np.abs(logistic.sigmoid(margins) - want).max() < 70  # half a step of 1/256 at slope 1/4
    assert (np.diff(logistic.sigmoid(margins)) >= 0).all()
    shares = np.arange(1, 1001)
    assert np.abs(logistic.log_losses()[1:] + np.log(shares / 1000) * 65536).max() < 1.01
    assert logistic.to_thousandths(np.array([0, 65536, 32768])).tolist() == [0, 1000, 500]


@pytest.mark.parametrize("header", [b'{"bits": 1000000000000}', b'{"bits": -1}', b"[" * 100_000])
def test_a_hostile_classifier_gives_a_message(header: bytes) -> None:
    whole = classifier._MAGIC + header + b"\n" + b"1234"
    with pytest.raises(PenstockError, match="not a complete classifier"):
        Classifier.from_bytes(whole)
