"""Whatever bytes stand in a record, its parser gives an equal value or one kind of error."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from one_rank import Alone
from penstock.guard import checkpoints
from penstock.guard.format.file_names import check_file_name
from penstock.guard.format.index import Index
from penstock.guard.format.local_file import read_local
from penstock.guard.format.manifest import CheckpointManifest
from penstock.guard.format.published import StoredCheckpoint, file_entry
from penstock.guard.tiers.identity import decode_identity, encode_identity
from penstock.guard.tiers.ownership import Owner
from penstock.guard.tiers.slots import Seal
from penstock.run.folder import plan_from_bytes
from penstock.untrusted import parse_table

Parser = Callable[[bytes], Any]
ERRORS = (ValueError, OSError)
SCALARS = {"step": 4, "settings": "ab" * 32, "layout": {"shard": 2}, "run": {"name": "x"}}
FILES = {name: file_entry(name.encode()) for name in ("index.json", "scalars.json", "state/__0_0")}
MANIFEST = CheckpointManifest(4, FILES, "ab" * 16, "cd" * 32, {"shard": 2}, {"run": "x", "step": 1})
SEAL = Seal("ab" * 16, "mark", 4, 0, 1, FILES, SCALARS)


def seal_bytes(body: bytes) -> bytes:
    """As a seal is written: a hash and what it is of."""
    return file_entry(body)["blake3"].encode() + b"\n" + body


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    state = {"a": torch.zeros(3, 4), "b": torch.tensor(1), "c": torch.zeros(0, 2)}
    saved = checkpoints.save(tmp_path_factory.mktemp("index"), 1, state, {}, {}, Alone())
    return (saved.path / "index.json").read_bytes()


def valid(index: bytes) -> dict[str, tuple[Parser, bytes]]:
    """Each parser with a record that it takes."""
    return {
        "manifest": (CheckpointManifest.from_bytes, MANIFEST.to_bytes()),
        "index": (Index.from_bytes, index),
        "seal": (Seal.from_bytes, seal_bytes(json.dumps(vars(SEAL)).encode())),
        "scalars": (parse_table, json.dumps(SCALARS).encode()),
        "identity": (decode_identity, encode_identity("ab" * 16)),
        "plan": (plan_from_bytes, json.dumps({"dataset": "x", "layout": {"shard": 1}}).encode()),
    }


KINDS = ["manifest", "index", "seal", "scalars", "identity", "plan"]


def stays_inside(found: Any) -> None:
    """No name that a parser gives leads out."""
    for name in getattr(found, "files", {}):
        assert check_file_name(name, "a record") == name
    for entry in getattr(found, "tensors", {}).values():
        assert all(chunk.file in found.files for chunk in entry.chunks)


def parsed(parse: Parser, content: bytes) -> Any:
    """What is there, or None where the parser says that it is nothing."""
    try:
        found = parse(content)
    except ERRORS:
        return None
    stays_inside(found)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_comes_back(kind: str, index: bytes) -> None:
    parse, content = valid(index)[kind]
    assert parsed(parse, content) is not None
    assert parse(content) == parse(content)


@pytest.mark.parametrize("kind", KINDS)
@given(content=st.binary(max_size=300))
def test_random_bytes(kind: str, index: bytes, content: bytes) -> None:
    parse, _ = valid(index)[kind]
    parsed(parse, content)
    if kind == "seal":
        parsed(parse, seal_bytes(content))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@pytest.mark.parametrize("kind", KINDS)
@given(value=JSON)
def test_random_json(kind: str, index: bytes, value: Any) -> None:
    parse, _ = valid(index)[kind]
    content = json.dumps(value).encode()
    parsed(parse, content)
    parsed(parse, seal_bytes(content))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=300)
def test_a_flipped_bit_is_noticed_or_changes_nothing(
    kind: str, index: bytes, data: st.DataObject
) -> None:
    parse, content = valid(index)[kind]
    at, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(content)
    flipped[at] ^= 1 << bit
    found = parsed(parse, bytes(flipped))
    if kind in ("manifest", "seal", "identity"):  # these have hashes of their own
        assert found is None or found == parse(content)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_torn_record_is_noticed(kind: str, index: bytes, data: st.DataObject) -> None:
    parse, content = valid(index)[kind]
    torn = content[: data.draw(st.integers(0, len(content) - 1))]
    found = parsed(parse, torn)
    assert found is None or found == parse(content)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every field of a JSON value, by the way to it."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for name, one in inner:
        found.append((*above, name))
        if isinstance(one, dict | list):
            found += places(one, (*above, name))
    return found


NAMES = st.sampled_from(["../x", "/etc/passwd", "a/../../b", "", "x\0", "\ud800", "state/x"])
OTHER = JSON | NAMES | st.integers(-(10**30), 10**30)


def mutated(value: Any, data: st.DataObject) -> Any:
    """One field of it gone, of another value, or under another name."""
    made = copy.deepcopy(value)
    way = data.draw(st.sampled_from(places(made)))
    holder = made
    for name in way[:-1]:
        holder = holder[name]
    change = data.draw(st.sampled_from(["value", "gone", "name"]))
    if change == "gone":
        del holder[way[-1]]
    elif change == "name" and isinstance(holder, dict):
        holder[data.draw(NAMES | st.text(max_size=8))] = holder.pop(way[-1])
    else:
        holder[way[-1]] = data.draw(OTHER)
    return made


@pytest.mark.parametrize("kind", ["manifest", "index", "seal", "scalars", "plan"])
@given(data=st.data())
@settings(max_examples=300)
def test_one_field_of_another_value_with_every_hash_right(
    kind: str, index: bytes, data: st.DataObject
) -> None:
    """As somebody writes it who knows the formats."""
    parse, content = valid(index)[kind]
    if kind == "seal":
        made = json.dumps(mutated(json.loads(content.partition(b"\n")[2]), data)).encode()
        parsed(parse, seal_bytes(made))
    elif kind == "manifest":
        table = {n: v for n, v in json.loads(content).items() if n not in ("blake3", "whole")}
        parsed(parse, with_hashes(mutated(table, data)))
    else:
        parsed(parse, json.dumps(mutated(json.loads(content), data)).encode())


def with_hashes(table: dict[str, Any]) -> bytes:
    """A manifest with the hashes that go with what it says."""
    from penstock.untrusted import hash_json

    body = table | {"blake3": hash_json(table.get("files"))}
    return json.dumps(body | {"whole": hash_json(body)}).encode()


@given(data=st.data())
@settings(max_examples=100)
def test_a_checkpoint_with_any_scalars_is_judged_in_words(
    tmp_path_factory: pytest.TempPathFactory,
    run_file_once: Any,
    data: st.DataObject,
) -> None:
    """Whose it is: by a table that a stranger wrote."""
    folder = tmp_path_factory.mktemp("scalars")
    table = {"step": 1, "run": {"name": "x", "train": {"clip": 0.5, "betas": [0.9, 0.95]}}}
    content = json.dumps(mutated(table, data)).encode()
    files = {"scalars.json": file_entry(content)}
    for about in ({}, {"run": "other"}, {"run": "own", "settings": "x"}):
        (folder / "scalars.json").write_bytes(content)
        (folder / "manifest.json").write_bytes(CheckpointManifest(1, files, **about).to_bytes())
        try:
            said = Owner("own", run_file_once).refusal(StoredCheckpoint(folder))
        except ERRORS:
            continue
        assert isinstance(said, str)
        assert said.isprintable()


@pytest.fixture(scope="module")
def run_file_once(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> Any:
    from penstock.run.load import load

    path = tmp_path_factory.mktemp("run") / "run.toml"
    path.write_text(
        f'name = "own"\n[model]\npreset = "llama-3m"\n[data]\ndataset = "{tiny}"\n'
        "[train]\nsteps = 3\n"
    )
    return load(path)


@given(content=st.binary(max_size=200))
@settings(max_examples=100)
def test_replica_local_state_of_any_bytes(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path: Path = tmp_path_factory.mktemp("local") / "local-r00000.safetensors"
    path.write_bytes(content)
    for head in (content, len(content).to_bytes(8, "little") + content):
        path.write_bytes(head)
        try:
            read_local(path)
        except ERRORS:
            continue
