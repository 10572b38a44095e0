"""Try the user's own module before any rank starts: build it, and give it one small batch.

What it raises is told once. Without this the ranks would meet the error, end, and be started again
as if a machine had failed. The trial runs on the CPU of this process: a module that needs a GPU is
built here, and its forward is left to the ranks.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.model.build import refuse_frozen, summed_loss, user_module
from penstock.run.file import Run
from penstock.secret import RedactedStream
from penstock.train.precision import COMPUTE

MOST_WORK = 1e11  # parameters × tokens of a trial, a few seconds of a CPU
MOST_LOGITS = 2**26  # elements
FEW_TOKENS = 8  # of a sequence where the whole one is too much
NO_GROUP = "process group has not been initialized"  # what torch says where there are no ranks


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a module has to know."""

    tokens: int
    of: str  # the dataset


def try_module(run: Run, kind: str, vocabulary: Vocabulary | None) -> None:
    """Raise an error for a module that cannot be built, called, or given every token.

    `kind` is what the ranks run on, "cpu" or "cuda". Without `vocabulary` only token 0 is tried.
    """
    with _aside(), torch.no_grad():
        try:
            model = _built(run)
        except PenstockError as error:
            if NO_GROUP in str(error):
                return
            raise
        inputs_bs, whole = _batch(run, model, vocabulary)
        try:
            _forward(model, inputs_bs)
        except (Exception, SystemExit) as error:
            if kind != "cpu" or not whole or NO_GROUP in str(error):
                return  # it may need a GPU, the whole sequence or its peers
            if isinstance(error, PenstockError):
                raise
            raise PenstockError(
                f'model.module = "{run.model.module}": its forward raised {type(error).__name__}: '
                f"{error} (tokens of shape {tuple(inputs_bs.shape)})"
            ) from error
        if vocabulary is not None:
            _try_last(run, model, inputs_bs, vocabulary)


def _try_last(run: Run, model: nn.Module, inputs_bs: Tensor, vocabulary: Vocabulary) -> None:
    """Give a module that takes token 0 the largest one, as input and as target."""
    count = vocabulary.tokens
    try:
        _forward(model, torch.full_like(inputs_bs, count - 1))
    except (Exception, SystemExit) as error:
        first = error.__cause__ or error
        raise PenstockError(
            f'model.module = "{run.model.module}": the tokenizer of {vocabulary.of} has {count} '
            f"tokens, and the module fails for token {count - 1} ({type(first).__name__}: {first})"
            f"; give its embedding and its output {count} rows or more"
        ) from error


def _batch(run: Run, model: nn.Module, vocabulary: Vocabulary | None) -> tuple[Tensor, bool]:
    """Make a batch of token 0, and say whether its sequences are as long as the run's."""
    rows = min(2, run.batch_samples)
    tokens = rows * run.sequence
    size = sum(param.numel() for param in model.parameters())
    logits = tokens * (vocabulary.tokens if vocabulary else 1)
    whole = size * tokens <= MOST_WORK and logits <= MOST_LOGITS
    length = run.sequence if whole else min(FEW_TOKENS, run.sequence)
    return torch.zeros((rows, length), dtype=torch.int64), whole


def _forward(model: nn.Module, inputs_bs: Tensor) -> None:
    """Compute the loss as a rank does; every token is its own target."""
    summed_loss(model)(inputs_bs, inputs_bs.clone())


def _built(run: Run) -> nn.Module:
    """Build the module as a rank does, in the number format of its matrix work."""
    assert run.model.module is not None
    model = user_module(run.model.module, run.train.seed)
    refuse_frozen(model, run.model.module)
    model = model.to("cpu").train()
    for param in model.parameters():
        if param.is_floating_point():
            param.data = param.data.to(COMPUTE[run.train.precision])
    return model


@contextmanager
def _aside() -> Iterator[None]:
    """Leave this process as it was: its random numbers, import path and output."""
    path = list(sys.path)
    try:
        said = RedactedStream(sys.stderr)  # what the user's code prints is no output of ours
        with (
            torch.random.fork_rng(devices=[]),
            redirect_stdout(said),
            redirect_stderr(said),
        ):
            yield
    finally:
        sys.path[:] = path
