"""A built dataset in other tokens than the model's: told by who only looks, before any build."""

import json
from pathlib import Path

import numpy as np
import pytest

from made_sets import made_set
from penstock.data.read.dataset import Dataset
from penstock.data.tokenize.train import train_tokenizer
from penstock.errors import PenstockError
from penstock.launch.prepare.open_model import refuse_other_data
from penstock.run.load import load

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 300,
    "max_position_embeddings": 64,
}


def test_tokens_of_a_built_dataset_are_those_of_the_model(tmp_path: Path) -> None:
    ours, others = (
        train_tokenizer([text * 40], 300)
        for text in ("the cat sat on the mat ", "zyx wvu tsr qpo ")
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model" / "tokenizer.json").write_bytes(ours)
    same, other = (
        made_set(tmp_path / name, np.arange(999) % 200, [0], name=name, tokenizer=tokenizer)
        for name, tokenizer in (("same", ours), ("other", others))
    )
    file = tmp_path / "run.toml"

    def look(dataset: Dataset) -> None:
        file.write_text(
            f'[model]\nfrom = "{tmp_path / "model"}"\n[data]\ndataset = "{dataset.folder}"\n'
            "[train]\nsteps = 2\nbatch_tokens = 64\n"
        )
        refuse_other_data(load(file), [dataset])

    look(same)
    with pytest.raises(PenstockError, match="was built with another tokenizer"):
        look(other)
