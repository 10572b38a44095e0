"""`train.loss`: the user's own loss gives what it says, the same in every layout."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from equality_cases import Answer, assert_equal, case, masked_set, prepared, train_a_little
from penstock.errors import PenstockError
from penstock.model.user_loss import checked_loss
from penstock.model.user_module import import_user_function, summed_loss
from penstock.plan.job.layout import Layout
from penstock.plan.job.legal import problems
from penstock.run.fingerprint import fingerprint
from penstock.run.load import load
from penstock.run.schema.code import UserCode

CODE = """
import torch.nn.functional as F
from helper_beside import SMOOTH

def plain(logits, targets):
    return F.cross_entropy(logits, targets, reduction="none")

def smooth(logits, targets):
    return F.cross_entropy(logits, targets, reduction="none", label_smoothing=SMOOTH)

def mean(logits, targets):
    return F.cross_entropy(logits, targets)

def whole(logits, targets):
    return targets

def wrong(logits, targets):
    return logits[targets.tolist()[0] + 10**9]
"""


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory, tiny: str) -> str:
    folder = tmp_path_factory.mktemp("own_loss")
    (folder / "mine.py").write_text(CODE)
    (folder / "helper_beside.py").write_text("SMOOTH = 0.1\n")
    masked = masked_set(Path(os.environ["PENSTOCK_HOME"]), "own_loss_masked")
    return prepared(folder, {"plain": tiny, "masked": masked})


def loss(where: str, name: str) -> str:
    return f"train.loss={Path(where).parent}/mine.py:{name}"


@pytest.fixture(scope="module")
def alone(where: str, ranks: Callable[..., list[Any]]) -> dict[tuple[str, str], Answer]:
    """What one process finds, by loss and dataset."""
    named = [
        ("", "plain"),
        ("plain", "plain"),
        ("smooth", "plain"),
        ("", "masked"),
        ("plain", "masked"),
        ("smooth", "masked"),
    ]
    cases = [case({}, *([loss(where, name)] if name else []), data=data) for name, data in named]
    return dict(zip(named, ranks(1, train_a_little, where, cases)[0], strict=True))


@pytest.mark.parametrize("data", ["plain", "masked"])
def test_the_same_loss_gives_the_same_numbers_and_another_gives_others(
    data: str, alone: dict[tuple[str, str], Answer]
) -> None:
    built_in, smooth = alone["", data], alone["smooth", data]
    assert_equal(built_in, [alone["plain", data]], data, rel=1e-10)
    assert smooth["losses"][0] != pytest.approx(built_in["losses"][0], rel=1e-6)
    assert smooth["evaluated"] != pytest.approx(built_in["evaluated"], rel=1e-6)


LAYOUTS: list[tuple[dict[str, Any], str]] = [
    ({"replicate": 2, "microbatch": 3}, "plain"),
    ({"shard": 2, "microbatch": 2}, "masked"),
    ({"context": 2, "microbatch": 3}, "plain"),
    ({"pipeline": 2, "microbatch": 2}, "masked"),
]


def test_every_layout_gives_the_loss_of_one_process(
    where: str, alone: dict[tuple[str, str], Answer], ranks: Callable[..., list[Any]]
) -> None:
    cases = [case(layout, loss(where, "smooth"), data=data) for layout, data in LAYOUTS]
    answers = ranks(2, train_a_little, where, cases)
    for number, (layout, data) in enumerate(LAYOUTS):
        assert_equal(alone["smooth", data], [one[number] for one in answers], str(layout))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mean", r"mean\": it gave \[\] for logits \[4, 9\] .* one loss per token"),
        ("wrong", r"wrong\": it raised IndexError"),
        ("whole", r"whole\": it gave torch.int64"),
        ("absent", r"mine\.py has no function 'absent'"),
    ],
)
def test_a_loss_that_is_wrong_is_told_as_the_users(name: str, said: str, where: str) -> None:
    code = UserCode("train.loss", f"{Path(where).parent}/mine.py:{name}")
    with pytest.raises(PenstockError, match=f"train.loss = .*{said}"):
        checked_loss(import_user_function(code), code)(
            torch.zeros(4, 9), torch.zeros(4, dtype=torch.int64)
        )


def test_an_own_module_can_have_an_own_loss(where: str) -> None:
    code = UserCode("train.loss", f"{Path(where).parent}/mine.py:plain")
    own = checked_loss(import_user_function(code), code)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)).double()
    inputs, targets = torch.randint(9, (2, 2, 5))
    for counted in (None, torch.rand(2, 5) < 0.5):
        expected = summed_loss(model)(inputs, targets, counted)
        assert summed_loss(model, own)(inputs, targets, counted).item() == pytest.approx(
            expected.item(), rel=1e-12
        )


def test_a_module_with_a_loss_of_its_own_takes_no_other(where: str) -> None:
    class Net(nn.Module):
        def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return tokens.float().mean()

    with pytest.raises(PenstockError, match=r"train\.loss: model\.module takes"):
        summed_loss(Net(), lambda logits, targets: targets)


def test_tensor_parallel_is_refused_by_name_before_anything_starts(where: str) -> None:
    run = load(where, [loss(where, "plain")])
    shape = run.model.shape(320)
    (said,) = problems(run, shape, Layout(tensor=2))
    assert said.startswith("layout.tensor = 2: train.loss is your own code")
    assert problems(run, shape, Layout(pipeline=2)) == []


def test_the_source_of_the_loss_is_part_of_the_fingerprint(tmp_path: Path, where: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    field = f"train.loss={file}:plain"
    before = fingerprint(load(where, [field]))
    assert before != fingerprint(load(where))
    moved = tmp_path / "moved.py"
    moved.write_text(CODE)
    assert fingerprint(load(where, [f"train.loss={moved}:plain"])) == before
    file.write_text(CODE + "# another line\n")
    assert fingerprint(load(where, [field])) != before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        ("def plain(:\n", r":1 is not Python"),
        ("def plian(logits, targets): pass\n", "Did you mean 'plian'"),
        ("if True:\n    def plain(logits, targets): pass\n", ""),
        ("from x import plain\n", ""),
    ],
)
def test_a_missing_function_is_refused_without_running_the_file(
    content: str | None, said: str, tmp_path: Path
) -> None:
    code = UserCode("train.loss", f"{tmp_path}/mine.py:plain")
    if content is not None:
        code.path.write_text(content)
    if not said:
        code.refuse_missing()
        return
    with pytest.raises(PenstockError, match=f"train.loss = .*{said}"):
        code.refuse_missing()


def test_a_loss_that_is_no_file_and_function_is_refused_with_the_file(where: str) -> None:
    with pytest.raises(PenstockError, match=r"train\.loss = .*not a file and a function"):
        load(where, ["train.loss=cross_entropy"])
