"""Scores, log-likelihoods and texts are those of the harness's own model for transformers."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Engine
from tokenizers import processors

import generic_models
import lora_peer
import penstock
from open_families import add_tokenizer
from penstock.errors import PenstockError
from penstock.launch.start import start
from penstock.launch.supervisor.preload import PreloadClient
from penstock.run.load import load
from penstock.train.export.model import export
from task_peer import SMALL, TASKS, assert_equal, loaded, theirs


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return loaded()


def ours(model: object, **options: Any) -> Any:
    (found,) = penstock.evaluate(str(model), TASKS, tasks_dir=SMALL, samples=True, **options)
    return found


def test_a_native_run_scores_as_its_export(
    run_file: Any, tmp_path: Path, tasks: dict[str, Any]
) -> None:
    path = run_file("native", **{"data.sequence": 64, "train.batch_tokens": 512})
    folder = start(load(path, ["train.steps=4"]))
    export(folder, tmp_path / "out", dtype="fp32")
    found = ours(folder.path)
    assert (found.results.step, found.results.truncated) == (4, 0)
    assert assert_equal(found, theirs(tmp_path / "out", tasks)) == 24 * 4 + 6 + 4
    # What was found is in the run's folder, and in its report.
    kept = json.loads(Path(found.saved).read_text())
    assert kept["scores"] == [one.to_json() for one in found.results.scores]
    (told,) = penstock.report(folder.path).task_scores
    assert told.scores == found.results.scores
    assert not told.during

    # A shorter context: requests are cut, and texts have several windows.
    config = tmp_path / "out" / "config.json"
    shorter = json.loads(config.read_text()) | {"max_position_embeddings": 64}
    config.write_text(json.dumps(shorter))
    short = ours(tmp_path / "out", dtype="fp32")
    assert short.results.truncated > 0
    assert short.results.scores != found.results.scores
    reference = theirs(tmp_path / "out", tasks)
    assert_equal(short, reference)
    assert_equal(ours(tmp_path / "out", dtype="fp32", batch=1), reference)


def test_an_adapter_run_scores_as_its_merged_export(
    tmp_path: Path, warm: PreloadClient, tasks: dict[str, Any]
) -> None:
    lora_peer.make_model(tmp_path / "base")
    lora_peer.write_chats(tmp_path / "chat.jsonl", 200)
    path = lora_peer.run_file(tmp_path / "lora.toml", tmp_path / "base", tmp_path / "chat.jsonl", 6)
    folder = start(load(path, ["train.precision=fp32", "train.learning_rate=0.01"]))
    export(folder, tmp_path / "merged", merged=True, dtype="fp32")
    found = ours(folder.path)
    assert_equal(found, theirs(tmp_path / "merged", tasks))
    base = ours(tmp_path / "base", dtype="fp32")
    assert found.results.scores != base.results.scores  # the adapter counts
    # Through the chat template too, whose text is another.
    chat = ours(folder.path, chat=True)
    assert_equal(chat, theirs(tmp_path / "merged", tasks, chat=True))
    assert chat.samples["sums_write"][0]["arguments"] != found.samples["sums_write"][0]["arguments"]
    export(folder, tmp_path / "adapter")
    with pytest.raises(PenstockError, match="an adapter without its model"):
        ours(tmp_path / "adapter")


def test_a_model_of_transformers_scores_as_there(tmp_path: Path, tasks: dict[str, Any]) -> None:
    folder = tmp_path / "neox"
    generic_models.saved("gpt_neox", folder)
    add_tokenizer(folder, ["What is 1 plus 2? It is 3."] * 10, generic_models.VOCAB, "")
    assert_equal(ours(folder), theirs(folder, tasks))


def test_a_token_that_the_tokenizer_puts_first_is_in_every_request(
    tmp_path: Path, tasks: dict[str, Any]
) -> None:
    folder = tmp_path / "base"
    lora_peer.make_model(folder)
    engine = Engine.from_file(str(folder / "tokenizer.json"))
    end = "<|end|>"
    pair = (end, engine.token_to_id(end))
    engine.post_processor = processors.TemplateProcessing(
        single=f"{end} $A", pair=f"{end} $A $B", special_tokens=[pair]
    )
    plain = ours(folder, dtype="fp32")
    engine.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": end}))
    found = ours(folder, dtype="fp32")
    assert_equal(found, theirs(folder, tasks))
    assert found.samples["sums_choice"][0]["resps"] != plain.samples["sums_choice"][0]["resps"]


def generators() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), torch.get_rng_state().tolist()


def test_evaluations_are_repeatable_and_leave_random_numbers_alone(tmp_path: Path) -> None:
    lora_peer.make_model(tmp_path / "base")
    before = generators()
    first, second = (ours(tmp_path / "base", dtype="fp32") for _ in range(2))
    assert generators() == before
    assert first.samples == second.samples
