"""`model.from` as a folder: what is here, and what the hub's cache holds or is fetched into it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import hub_server
from penstock.catalog.open.folder import (
    fetch_weights,
    model_folder,
    read_small_files,
    shape_of_model,
)
from penstock.catalog.open.hub import ModelNotFound
from penstock.errors import PenstockError
from penstock.run.load import load, with_model_config

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
    "vocab_size": 300,
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "original/consolidated.00.pth": b"pickle",
    "README.md": b"about",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    pytest.importorskip("huggingface_hub")
    asked: list[str] = []
    with hub_server.hub({"org/model": FILES}, kind="models", asked=asked) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        yield asked


def test_a_folder_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert model_folder(str(tmp_path)) == fetch_weights(str(tmp_path)) == tmp_path
    assert shape_of_model(str(tmp_path)).layers == 4
    assert read_small_files(tmp_path).keys() == {"config.json"}


def test_what_is_not_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no such folder; write the folder"):
        model_folder(str(tmp_path / "gone"))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelNotFound, match=r"no config\.json; it holds notes\.txt"):
        model_folder(str(tmp_path))
    with pytest.raises(ModelNotFound, match="a file, not a folder"):
        model_folder(str(tmp_path / "notes.txt"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PenstockError, match=r"config\.json cannot be read"):
        shape_of_model(str(tmp_path))


@pytest.mark.parametrize(
    "given", ["hf:org/model", "org/model", f"hf:org/model@{hub_server.COMMIT}"]
)
def test_the_hub_is_asked_for_little_first_and_then_for_the_weights(
    hub: list[str], given: str
) -> None:
    folder = model_folder(given)
    assert shape_of_model(given).hidden == 64
    assert not any("safetensors" in path for path in hub)
    assert fetch_weights(given) == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert not any("consolidated" in path or "README" in path for path in hub)


def test_what_is_in_the_cache_needs_no_hub(hub: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch_weights("hf:org/model")
    hub.clear()
    assert model_folder("hf:org/model") == folder
    assert hub == []
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    assert fetch_weights("hf:org/model") == folder


def test_a_hub_without_the_model_or_without_a_network(
    hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelNotFound, match="there is no such model"):
        model_folder("hf:org/other")
    with pytest.raises(ModelNotFound, match="no such revision"):
        model_folder("hf:org/model@feature")
    with pytest.raises(ModelNotFound, match="no name of a model"):
        model_folder("hf:not a name")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="cannot be reached") as error:
        model_folder("org/other")
    assert "write the folder" in str(error.value)


def test_a_run_file_that_names_the_hub_is_loaded_without_it(hub: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[model]\nfrom = "org/model"\n[data]\nsequence = 512\n')
    run = load(file)
    assert run.model.base() is None
    assert hub == []
    with pytest.raises(PenstockError, match="context of 256 tokens; write 256"):
        with_model_config(run)
    assert hub
    file.write_text('[model]\nfrom = "org/model"\n')
    run = load(file)  # now it is in the cache
    assert run.sequence == 256
    assert with_model_config(run) is run
    assert run.model.shape(None).vocab == 300
    assert run.model.tokenizer() == str(model_folder("org/model"))
