"""Tokenizers from everywhere: the end of a document, the template, the same ids."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

import hub_server
from penstock.data.format.locate import datasets_home
from penstock.data.format.writer import DatasetWriter
from penstock.data.tokenize.fast import FastTokenizer
from penstock.data.tokenize.load import load_tokenizer
from penstock.data.tokenize.special import END, SpecialTokens, read_special, with_special
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.data.tokenize.train import train_tokenizer
from penstock.errors import PenstockError

TEXTS = ["one two three four", "five six seven"] * 10
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


def foreign() -> bytes:
    """A tokenizer as a model brings it: its own special tokens, and settings that lose text."""
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<|turn|>"]
    engine.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    engine.decoder = decoders.ByteLevel()
    engine.enable_truncation(2)
    return engine.to_str().encode()


def folder(path: Path, **files: Any) -> Path:
    """A model's folder; keyword `tokenizer_config` is tokenizer_config.json."""
    path.mkdir()
    (path / "tokenizer.json").write_bytes(foreign())
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_a_models_folder(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "chat_template": TEMPLATE}
    content, special = load_tokenizer(folder(tmp_path / "m", tokenizer_config=config))
    assert special == SpecialTokens("</s>", 1, {"bos_token": "<s>", "eos_token": "</s>"}, TEMPLATE)
    # All of it is in the one file, which still is a plain tokenizer.json.
    tokenizer = Tokenizer.from_json(content)
    assert (tokenizer.special, tokenizer.end) == (special, 1)
    assert Engine.from_str(content.decode()).token_to_id("</s>") == 1
    ids = tokenizer.encode("one two three</s>")
    assert tokenizer.decode(ids) == "one two three</s>"
    assert tokenizer.end not in ids
    fast = FastTokenizer(content, ["tokenizers"])
    assert fast.encode_batch(["one two three</s>"]).ids.tolist() == ids.tolist()
    # and loading that file, or the dataset that keeps it, gives the same
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert load_tokenizer(tmp_path / "tokenizer.json") == (content, special)


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ({"special_tokens_map": {"eos_token": "<|turn|>"}}, "<|turn|>"),
        ({"generation_config": {"eos_token_id": 1}}, "</s>"),
        ({"generation_config": {"eos_token_id": [2, 1]}}, "<|turn|>"),
        (
            {"tokenizer_config": {"eos_token": None}, "generation_config": {"eos_token_id": 1}},
            "</s>",
        ),
    ],
)
def test_the_end_token_is_found_in_all_known_places(
    tmp_path: Path, files: dict[str, Any], end: str
) -> None:
    assert load_tokenizer(folder(tmp_path / "m", **files))[1].end == end


def test_the_user_can_choose_the_end_token(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", tokenizer_config={"eos_token": "</s>"})
    content, special = load_tokenizer(path, end="<|turn|>", template="{{ 1 }}")
    assert (special.end, special.end_id, special.template) == ("<|turn|>", 2, "{{ 1 }}")
    assert read_special(content).end_id == 2
    with pytest.raises(PenstockError, match=r"tokens.end = '<x>'.*<s>, </s>, <\|turn\|>"):
        load_tokenizer(path, end="<x>")
    with pytest.raises(PenstockError, match=r"'one' cannot end a document.*<s>, </s>"):
        load_tokenizer(path, end="one")  # an everyday token


def test_a_missing_end_token_is_an_error_that_lists_candidates(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(foreign())
    with pytest.raises(PenstockError, match=r"Set tokens.end to one of .*<s>, </s>, <\|turn\|>"):
        load_tokenizer(tmp_path / "t.json")
    content, special = load_tokenizer(tmp_path / "t.json", end="</s>")
    assert read_special(content) == special


def test_our_own_end_token_is_recognised(tmp_path: Path) -> None:
    content = train_tokenizer(TEXTS, 300)
    (tmp_path / "t.json").write_bytes(content)
    assert load_tokenizer(tmp_path / "t.json") == (content, SpecialTokens(END, 0))  # byte for byte
    # A model that has <|end|> for another purpose says what its end is.
    model = tmp_path / "m"
    model.mkdir()
    (model / "tokenizer.json").write_bytes(content)
    (model / "tokenizer_config.json").write_text('{"eos_token": "<|user|>"}')
    assert load_tokenizer(model)[1].end == "<|user|>"


def test_chat_templates_are_found_in_all_known_places(tmp_path: Path) -> None:
    config = {"eos_token": "</s>", "chat_template": [{"name": "default", "template": "a"}]}
    path = folder(tmp_path / "m", tokenizer_config=config)
    assert load_tokenizer(path)[1].template == "a"
    (path / "chat_template.json").write_text('{"chat_template": "b"}')
    assert load_tokenizer(path)[1].template == "b"
    (path / "chat_template.jinja").write_text("c")
    assert load_tokenizer(path)[1].template == "c"
    other = {"eos_token": "</s>", "chat_template": [{"name": "rag", "template": "a"}]}
    with pytest.raises(PenstockError, match="none is called 'default'"):
        load_tokenizer(folder(tmp_path / "n", tokenizer_config=other))


def test_a_dataset_by_name_and_by_folder() -> None:
    content = with_special(foreign(), SpecialTokens("</s>", 1, {}, TEMPLATE))
    with DatasetWriter(datasets_home(), "chatty", 300, content) as writer:
        writer.add(np.array([5, 1]))
        built = writer.finish({"kind": "test"}, {}, {})
    for where in ("chatty", built.name, built, str(built)):
        assert load_tokenizer(where) == (content, read_special(content))


def test_a_file_that_is_no_tokenizer_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(PenstockError, match=r"no tokenizer\.json, only tokenizer\.model"):
        load_tokenizer(tmp_path)
    for where in ("no-such-set", "no-such-set@123", tmp_path / "none"):
        with pytest.raises(PenstockError, match="neither a file or folder"):
            load_tokenizer(where)
    path = folder(tmp_path / "m")
    (path / "tokenizer_config.json").write_text("{")
    with pytest.raises(PenstockError, match=r"tokenizer_config\.json cannot be read"):
        load_tokenizer(path)
    (path / "tokenizer.json").write_text("{}")
    (path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(PenstockError, match=r"not a tokenizer\.json"):
        load_tokenizer(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine with one model; gives the paths that it was asked for."""
    constants = pytest.importorskip("huggingface_hub.constants")
    files = {
        "tokenizer.json": foreign(),
        "tokenizer_config.json": b'{"eos_token": "</s>"}',
        "model.safetensors": b"large",
    }
    asked: list[str] = []
    with hub_server.hub({"org/tok": files}, kind="models", asked=asked) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield asked


def test_a_tokenizer_of_the_hub(hub: list[str]) -> None:
    content, special = load_tokenizer("hf:org/tok")
    assert (special.end, special.origin) == ("</s>", f"org/tok@{hub_server.COMMIT}")
    assert read_special(content).origin == ""  # where it came from is no part of what it is
    assert not any("safetensors" in path for path in hub)  # only the few files that it needs
    with pytest.raises(PenstockError, match=r"hf:org/none cannot be fetched: .*404"):
        load_tokenizer("hf:org/none")


def test_an_error_in_a_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(PenstockError, match=rf"Tokenizer {tmp_path}: This is not a tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(foreign())
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(PenstockError, match="cannot be read: it holds a list"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b'{"model":' * 100_000,
        b'{"model": {"vocab": [' + b"[" * 100_000,
        b'{"model": {"type": "BPE", "vocab": 7}}',
        b'{"model": {"type": "BPE", "vocab": {"a": -1}}}',
        b'{"model": {"type": "BPE", "vocab": {"a": 99999999999}}}',
        b'{"model": {"type": "BPE", "vocab": {"a": "b"}}}',
        b'{"model": {"type": "Unigram", "vocab": [1]}}',
        b'{"model": {"type": "BPE", "vocab": {}}, "added_tokens": {"a": 1}}',
        b'{"model": {"type": "BPE", "vocab": {}}, "added_tokens": [{}]}',
        b'{"model": {"type": "BPE", "vocab": {}}, "added_tokens": [{"content": "a"}]}',
        b'{"model": {"type": "BPE", "vocab": {}}, "added_tokens": [{"content": "a", "id": 1e9}]}',
        b'{"model": {"type": "BPE", "vocab": {}}, "added_tokens": '
        b'[{"content": "a", "id": 1, "penstock": {"names": [1]}}]}',
    ],
)
def test_a_hostile_tokenizer_gives_a_message(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(PenstockError, match=r"not a tokenizer\.json"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_files_beside_a_tokenizer_are_read_with_care(tmp_path: Path) -> None:
    for name in ("tokenizer_config", "generation_config", "special_tokens_map"):
        where = folder(tmp_path / name)
        (where / f"{name}.json").write_bytes(b'{"a":' * 100_000)
        with pytest.raises(PenstockError, match="nested too deeply"):
            load_tokenizer(where)
