"""Model folders from somebody else: clean messages, at once, whatever the files hold."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.catalog.open.folder import read_config, read_small_files
from penstock.catalog.open.headers import INDEX, SINGLE
from penstock.catalog.open.models import FAMILIES, shape_of
from penstock.catalog.shapes import LARGEST, ModelShape
from penstock.errors import PenstockError
from penstock.model.open.files import check_open_files
from penstock.untrusted import SMALL_BYTES, preview, read_bounded

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
    "vocab_size": 300,
}
EXPERTS = {
    "mixtral": "num_local_experts",
    "qwen3_moe": "num_experts",
    "dots1": "n_routed_experts",
}
FIELDS = (
    *CONFIG, *EXPERTS.values(), "head_dim", "num_key_value_heads", "moe_intermediate_size",
    "num_experts_per_tok", "n_shared_experts", "first_k_dense_replace", "mlp_only_layers",
    "decoder_sparse_step", "layer_types", "sliding_window", "use_sliding_window",
    "max_window_layers", "rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps",
    "tie_word_embeddings", "hidden_act", "norm_topk_prob", "partial_rotary_factor",
    "routed_scaling_factor", "quantization_config",
)  # fmt: skip
AT_ONCE_S = 5.0
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 100)
    | st.sampled_from([10**8, 10**30, 2**63, 10**400])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([*FAMILIES, "full_attention", "llama3", "silu"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "field",
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "head_dim",
        "max_position_embeddings",
    ],
)
def test_a_shape_that_no_model_has_is_refused_at_once(field: str) -> None:
    for many in (10**8 if field == "num_hidden_layers" else 10**13, 10**400):
        began = time.monotonic()
        with pytest.raises(PenstockError, match=rf"config\.json: {field} = .* more than any model"):
            shape_of(CONFIG | {field: many})
        assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_that_no_model_has_are_refused_at_once(family: str) -> None:
    config = CONFIG | {"model_type": family, "moe_intermediate_size": 8, "num_experts_per_tok": 1}
    config |= {EXPERTS[family]: 60_000, "n_shared_experts": 1, "num_hidden_layers": 9_999}
    began = time.monotonic()
    with pytest.raises(PenstockError, match="experts: more than 1,048,576 over 9,999 layers"):
        shape_of(config)
    with pytest.raises(PenstockError, match="experts"):
        shape_of(config | {EXPERTS[family]: 10**9})
    assert time.monotonic() - began < AT_ONCE_S


def test_odd_values_of_a_config_are_told() -> None:
    for field, value in (
        ("mlp_only_layers", ["x"]),
        ("mlp_only_layers", [[1]]),
        ("rms_norm_eps", float("inf")),
        ("num_attention_heads", 128),
        ("layer_types", [None]),
        ("layer_types", [[]] * 4),
    ):
        config = CONFIG | {"model_type": "qwen3_moe", "moe_intermediate_size": 8}
        with pytest.raises(PenstockError, match=r"config\.json: "):
            shape_of(config | {"head_dim": None, field: value})


@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6), st.sampled_from(sorted(FAMILIES))
)
def test_any_config_is_a_shape_within_bounds_or_a_message(
    changes: dict[str, Any], family: str
) -> None:
    config = CONFIG | {"model_type": family, "moe_intermediate_size": 8, "n_routed_experts": 8}
    config |= {"num_experts_per_tok": 2, "n_shared_experts": 1}
    try:
        shape = shape_of(json.loads(json.dumps(config | changes)))
    except PenstockError:
        return
    assert isinstance(shape, ModelShape)
    assert all((getattr(shape, name) or 0) <= most for name, most in LARGEST.items())
    assert shape.params() > 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (SMALL_BYTES + 1), "larger than 16 MiB"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"7", "holds a int"),
    ],
)
def test_a_config_that_is_no_config(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(PenstockError, match=words):
        read_config(tmp_path)


def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(PenstockError, match="not a plain file"):
        read_config(tmp_path)
    assert read_small_files(tmp_path) == {}
    with pytest.raises(OSError, match="Is a directory"):
        read_bounded(tmp_path)
    (tmp_path / "link").symlink_to("config.json")
    with pytest.raises(OSError, match="Too many levels"):
        read_bounded(tmp_path / "link", follow=False)


def test_a_generation_config_has_a_largest_size(tmp_path: Path) -> None:
    with (tmp_path / "generation_config.json").open("wb") as file:
        file.truncate(SMALL_BYTES + 1)
    with pytest.raises(
        PenstockError, match=r"generation_config\.json cannot be read: it is larger"
    ):
        read_small_files(tmp_path)


def test_foreign_values_are_shown_short() -> None:
    for value in ("x" * 10**6, 10**5000, [[[1]]], {"a": {"b": 1}}, list(range(10**6)), b"y" * 900):
        assert len(preview(value)) < 100
    assert preview("a") == "'a'"
    assert preview([1, 2]) == "[1, 2]"


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def judged(tmp_path: Path, content: bytes) -> str:
    """What is said of a model with this file of weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(PenstockError) as refused:
        check_open_files(tmp_path)
    return str(refused.value)


TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b'{"a":' * 100_000, b"", "nested too deeply"),
        (b"[" * 100_000, b"", "nested too deeply"),
        (b"[]", b"", "it is no object"),
        (b'{"a": 1}', b"", "no dtype, shape and data_offsets"),
        (b'{"a": {"data_offsets": [0, 0]}}', b"", "no dtype, shape"),
        (json.dumps({"a": TENSOR | {"data_offsets": [0, 25]}}).encode(), b"x" * 25, "offsets hold"),
        (json.dumps({"a": TENSOR | {"data_offsets": [24, 0]}}).encode(), b"x" * 24, "data_offsets"),
        (json.dumps({"a": TENSOR | {"data_offsets": [-24, 0]}}).encode(), b"", "data_offsets"),
        (json.dumps({"a": TENSOR | {"data_offsets": [8, 32]}}).encode(), b"x" * 32, "do not fill"),
        (json.dumps({"a": TENSOR, "b": TENSOR}).encode(), b"x" * 24, "overlap"),
        (json.dumps({"a": TENSOR}).encode(), b"x" * 23, "cut short"),
        (json.dumps({"a": TENSOR}).encode(), b"x" * 25, "do not fill"),
        (json.dumps({"a": TENSOR | {"shape": [2.0, 3]}}).encode(), b"x" * 24, "no dtype, shape"),
        (json.dumps({"a": TENSOR | {"shape": [1] * 1000}}).encode(), b"x" * 4, "no dtype, shape"),
        (b'{"a": {"dtype": "F32", "shape": [' + b"9" * 4000 + b"]}}", b"", "no dtype, shape"),
    ],
)
def test_a_header_that_cannot_be_true(
    tmp_path: Path, header: bytes, data: bytes, words: str
) -> None:
    assert words in judged(tmp_path, safetensors(header, data))


def test_a_header_that_claims_to_be_huge(tmp_path: Path) -> None:
    assert "cut short" in judged(tmp_path, (2**63).to_bytes(8, "little") + b"{}")
    assert "cut short" in judged(tmp_path, b"")


def test_an_index_that_is_nested_without_end(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_bytes(b"[" * 100_000)
    assert "no index of weights" in judged(tmp_path, b"")


@given(st.data())
def test_any_bytes_as_weights_give_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Random bytes, whole headers of odd values, and flips in a good file."""
    good = safetensors(json.dumps({"a": TENSOR}).encode(), b"x" * 24)
    entry = st.fixed_dictionaries({}, optional={"dtype": JSON, "shape": JSON, "data_offsets": JSON})
    kind = data.draw(st.sampled_from(["bytes", "header", "flip", "cut"]))
    if kind == "bytes":
        content = data.draw(st.binary(max_size=200))
    elif kind == "header":
        header = data.draw(st.dictionaries(st.text(max_size=5), entry | JSON, max_size=3) | JSON)
        content = safetensors(json.dumps(header).encode(), data.draw(st.binary(max_size=64)))
    elif kind == "flip":
        at = data.draw(st.integers(0, 8 * len(good) - 1))
        flipped = bytearray(good)
        flipped[at // 8] ^= 1 << at % 8
        content = bytes(flipped)
    else:
        content = good[: data.draw(st.integers(0, len(good) - 1))]
    judged(tmp_path_factory.mktemp("model"), content)
