"""Batches that were not trained on, kept for people."""

import json
import os
from pathlib import Path

import numpy as np

from penstock.guard.detect.bad_batch import KEEP, SHOWN, BadBatch, save_bad_batch


def letters(tokens: list[int]) -> str:
    return "".join(chr(97 + t % 26) for t in tokens)


def test_a_slice_can_be_read_by_programs_and_by_people(tmp_path: Path) -> None:
    tokens = np.array([[0, 1, 2], [25, 24, 70_000]])
    where = Path(save_bad_batch(tmp_path, BadBatch(120, 1, 960, tokens), {}, letters))
    assert where == tmp_path / "step-00000120"
    held = np.load(where / "rank-00001.npz")
    assert held["tokens"].tolist() == tokens.tolist()
    assert held["positions"].tolist() == [960, 961]
    assert (where / "rank-00001.txt").read_text() == (
        "--- sample 960 ---\nabc\n--- sample 961 ---\nzyi\n"
    )
    assert not (where / "about.json").exists()  # written by one rank only
    save_bad_batch(tmp_path, BadBatch(120, 0, 958, tokens), {"loss": "nan"}, letters)
    assert json.loads((where / "about.json").read_text()) == {"step": 120, "loss": "nan"}
    assert len(list(where.glob("rank-*.npz"))) == 2


def test_a_large_slice_is_whole_in_numbers_and_short_in_text(tmp_path: Path) -> None:
    tokens = np.zeros((SHOWN + 7, 2), dtype=np.int64)
    where = Path(save_bad_batch(tmp_path, BadBatch(1, 0, 0, tokens), {}, letters))
    assert len(np.load(where / "rank-00000.npz")["tokens"]) == SHOWN + 7
    assert (where / "rank-00000.txt").read_text().endswith("and 7 more, in the .npz ---\n")


def test_only_the_newest_are_kept_whatever_their_step(tmp_path: Path) -> None:
    tokens = np.zeros((1, 2), dtype=np.int64)
    for number in range(KEEP + 5):
        step = 1000 - number  # as of a run that went back
        where = save_bad_batch(tmp_path, BadBatch(step, 0, 0, tokens), {"loss": "nan"}, letters)
        os.utime(where, (number, number))
    kept = sorted(int(p.name.removeprefix("step-")) for p in tmp_path.iterdir())
    assert len(kept) == KEEP
    assert kept[0] == 1000 - KEEP - 4
