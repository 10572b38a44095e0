"""Fast tokens: the ids of `tokenizers`, or no fast engine at all."""

import json
import random
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from penstock.data.tokenize import fast as fast_tokens
from penstock.data.tokenize.fast import FAST_ENGINES, FastTokenizer, FlatTokens
from penstock.data.tokenize.hard_sample import hard_texts
from penstock.data.tokenize.pcre_white_space import BLANKS, spelled_out
from penstock.data.tokenize.tokenizer import END, train_code_tokenizer
from penstock.errors import PenstockError

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LIBRARY = Path(sysconfig.get_path("stdlib"))
TEXTS = [path.read_text("utf-8") for path in sorted(LIBRARY.glob("[a-d]*.py"))]
TEXTS += ["  \u180e  ᠀ \n\n  日本語 テスト １２３ naïve café 😀😀 'S 'ſ 12345 ١٢٣"] * 20


@cache
def ours() -> bytes:
    return train_code_tokenizer(TEXTS, 2000).to_json()


@cache
def llama() -> bytes:
    engine = Engine(models.BPE(ignore_merges=True))
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False),
    )
    engine.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    return engine.to_str().encode()


@cache
def fast(make: Callable[[], bytes]) -> FastTokenizer:
    pytest.importorskip("fastokens")
    pytest.importorskip("gigatoken")
    tokenizer = FastTokenizer(make())
    assert tokenizer.engine != "tokenizers", tokenizer.notes
    return tokenizer


@cache
def reference(make: Callable[[], bytes]) -> Engine:
    engine = Engine.from_str(make().decode())
    engine.encode_special_tokens = True
    return engine


def assert_equal(make: Callable[[], bytes], texts: list[str]) -> None:
    flat = fast(make).encode_batch(texts)
    assert flat.ids.dtype == np.uint16
    assert flat.starts[0] == 0
    assert flat.starts[-1] == len(flat.ids)
    for at, text in enumerate(texts):
        expected = reference(make).encode(text, add_special_tokens=False).ids
        assert flat.document(at).tolist() == expected, ascii(text)


CASES = [ours, llama]
MIXED = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            ["  ", "\n\n    ", "\r\n", "\t", "'s", "'LL", "def ", "return", END, "123"]
        ),
        st.sampled_from(["\u180e", "\u0301", "\xa0", "\u3000", "<|end_of_text|>", "ſ", "😀", "_"]),
    ),
    max_size=20,
).map("".join)


@pytest.mark.parametrize("make", CASES)
@settings(max_examples=100, deadline=None)
@given(texts=st.lists(MIXED, max_size=8))
def test_ids_are_those_of_tokenizers(make: Callable[[], bytes], texts: list[str]) -> None:
    assert_equal(make, texts)


@pytest.mark.parametrize("make", CASES)
def test_ids_of_random_bytes_and_of_code(make: Callable[[], bytes]) -> None:
    rng = random.Random(7)
    texts = [rng.randbytes(rng.randrange(200)).decode("latin-1") for _ in range(300)]
    texts += [rng.randbytes(rng.randrange(200)).decode("utf-8", "replace") for _ in range(300)]
    for text in rng.sample(TEXTS, 10):  # code with bytes knocked out of it
        content = bytearray(text.encode()[:20_000])
        for _ in range(100):
            content[rng.randrange(len(content))] = rng.randrange(256)
        texts.append(content.decode("utf-8", "ignore"))
    assert_equal(make, texts)


def test_the_default_is_the_fastest_exact_engine() -> None:
    # gigatoken does not know our pattern; PCRE2, within fastokens, has one blank too many.
    assert fast(ours).engine == "fastokens-spelled"
    assert [note.split()[0] for note in fast(ours).notes] == ["fastokens", "gigatoken"]
    assert fast(llama).engine == "fastokens", fast(llama).notes


def test_letters_that_only_the_newest_unicode_knows() -> None:
    # Letters to gigatoken 0.10, and not yet to tokenizers 0.23: `'s` after them shows it.
    texts = [f"{letter}'s" for letter in "\U00016ec4\U00010940\U000187fb\u088f"]
    texts += ["  \u180e"]  # a blank to PCRE2 alone
    assert_equal(llama, texts)
    assert_equal(ours, texts)


@pytest.fixture
def short_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the sample, and all of it that the faults below show in."""

    def short(special: list[str]) -> list[str]:
        texts = hard_texts(special)
        telling = [t for t in texts if "\u1bfc" in t or any(token in t for token in special)]
        return texts[::20] + telling

    monkeypatch.setattr(fast_tokens, "hard_texts", short)


def broken(change: Callable[[FlatTokens, list[str]], FlatTokens]) -> Callable[[Any], Any]:
    """An engine that is right but for one thing."""

    def make(config: Any) -> Callable[[list[str]], FlatTokens]:
        encode, _ = fast_tokens._reference(config)
        return lambda texts: change(encode(texts), texts)

    return make


def one_character_wrong(flat: FlatTokens, texts: list[str]) -> FlatTokens:
    ids = flat.ids.copy()
    for at, text in enumerate(texts):
        if "\u1bfc" in text:  # a rare sign of the Batak script
            ids[flat.starts[at]] += 1
    return FlatTokens(ids, flat.starts)


def special_tokens_read(flat: FlatTokens, texts: list[str]) -> FlatTokens:
    ids = flat.ids.copy()
    for at, text in enumerate(texts):
        if END in text:
            ids[flat.starts[at]] = 0
    return FlatTokens(ids, flat.starts)


def lost_at_the_end(flat: FlatTokens, texts: list[str]) -> FlatTokens:
    starts = flat.starts.copy()
    starts[-1] -= 1
    return FlatTokens(flat.ids, starts)


class PanicException(BaseException):
    """As a panic of Rust code reaches Python."""


def panics(flat: FlatTokens, texts: list[str]) -> FlatTokens:
    raise PanicException("index out of bounds")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (one_character_wrong, "ids differ"),
        (special_tokens_read, "ids differ"),
        (lost_at_the_end, "ids differ"),
        (panics, "index out of bounds"),
    ],
)
@pytest.mark.usefixtures("short_sample")
def test_an_engine_with_a_fault_is_refused_with_a_note(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., FlatTokens], words: str
) -> None:
    monkeypatch.setitem(FAST_ENGINES, "faulty", broken(fault))
    tokenizer = FastTokenizer(ours(), ["faulty"])
    assert tokenizer.engine == "tokenizers"
    assert len(tokenizer.notes) == 1
    assert words in tokenizer.notes[0]


def test_an_engine_that_is_not_installed_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(config: Any) -> Any:
        raise ImportError("No module named 'gigatoken'")

    monkeypatch.setitem(FAST_ENGINES, "gigatoken", missing)
    tokenizer = FastTokenizer(ours(), ["gigatoken"])
    assert tokenizer.engine == "tokenizers"
    assert "penstock[data]" in tokenizer.notes[0]


@pytest.mark.usefixtures("short_sample")
def test_a_batch_that_the_fast_engine_fails_on_is_encoded_by_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_one_text(flat: FlatTokens, texts: list[str]) -> FlatTokens:
        return panics(flat, texts) if texts == ["poison"] else flat

    monkeypatch.setitem(FAST_ENGINES, "brittle", broken(on_one_text))
    tokenizer = FastTokenizer(ours(), ["brittle"])
    assert tokenizer.engine == "brittle"
    ids = tokenizer.encode_batch(["poison"]).ids.tolist()
    assert ids == reference(ours).encode("poison").ids
    assert tokenizer.fallbacks == 1


def test_settings_that_would_lose_text_are_left_out() -> None:
    config = json.loads(ours())
    plain = FastTokenizer(ours(), ["tokenizers"]).encode_batch(TEXTS[:2])
    config["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    config["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": END,
    }
    config["model"]["dropout"] = 0.5
    again = FastTokenizer(json.dumps(config).encode(), ["tokenizers"]).encode_batch(TEXTS[:2])
    assert np.array_equal(plain.ids, again.ids)
    assert np.array_equal(plain.starts, again.starts)


def test_many_tokens_need_four_bytes_and_no_text_gives_no_ids() -> None:
    engine = Engine(models.WordLevel({f"w{k}": k for k in range(70_000)}, unk_token="w0"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = FastTokenizer(engine.to_str().encode(), ["tokenizers"])
    flat = tokenizer.encode_batch(["w69999 w1", "", "w2"])
    assert (flat.ids.dtype, flat.ids.tolist()) == (np.uint32, [69_999, 1, 2])
    assert flat.starts.tolist() == [0, 2, 2, 3]
    for make in CASES:
        empty = fast(make).encode_batch([])
        assert (len(empty), empty.starts.tolist(), empty.ids.size) == (0, [0], 0)


def test_mistakes_are_reported() -> None:
    for content in [b"", b"[]", b'{"model": 3}', b"\xff", b'{"model": {"type": "What"}}']:
        with pytest.raises(PenstockError, match=r"tokenizer\.json"):
            FastTokenizer(content)
    with pytest.raises(PenstockError, match="no tokenizer engine"):
        FastTokenizer(ours(), ["quick"])


def test_lone_surrogates_are_rejected() -> None:
    slow = FastTokenizer(ours(), ["tokenizers"])
    for tokenizer in [slow, fast(ours), fast(llama)]:
        with pytest.raises(PenstockError, match="Text 1 of the batch"):
            tokenizer.encode_batch(["fine", "bad \ud800"])


def test_white_space_is_spelled_out_where_possible() -> None:
    assert spelled_out(r"\s+(?!\S)|\\s[^\s\]x]") == (
        f"[{BLANKS}]+(?![^{BLANKS}])|\\\\s[^{BLANKS}\\]x]"
    )
    assert spelled_out(r"[^\S\r\n]+\S").endswith(f"]+[^{BLANKS}]")
    assert spelled_out(r"[\Sx]\s") == r"[\Sx]\s"
