"""A trial of the user's own code before any rank starts: one small forward and backward pass.

An error is reported once. Without the trial the ranks would meet the error, end, and be restarted
as if a machine had failed. The trial runs on the CPU of this process. Code that needs a GPU, or
more of a sequence than is tried, may raise here and be right: then it is left to the ranks.

Shape suffixes: b batch, s sequence, n tokens, v vocab.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from penstock.errors import OwnCodeError, PenstockError
from penstock.model.user_loss import TokenLoss, checked_loss, loss_rule
from penstock.model.user_module import (
    NoLogits,
    build_user_module,
    call_for_logits,
    import_user_function,
    refuse_untrainable,
    summed_loss,
    tensors_in,
)
from penstock.run.schema.code import UserCode, loss_code, module_code
from penstock.run.schema.run import Run
from penstock.secret import RedactedStream
from penstock.train.optim.muon import refuse_no_matrix
from penstock.train.parallel.parts import no_gradient_message
from penstock.train.parallel.precision import COMPUTE, MASTER

MOST_WORK = 7e10  # parameters × tokens of a trial: a few seconds of a CPU for both passes
MOST_LOGITS = 2**25  # elements
MOST_GRADIENTS = 2**28  # elements; a larger module is only tried forward
LOSS_LOGITS = 2**20  # elements, for a loss that is tried without a model
FEW_TOKENS = 8  # of a sequence where the whole one is too much
MORE_BATCHES = 3  # for parameters that the first batch may just not have reached
NO_GROUP = "process group has not been initialized"  # what torch says where there are no ranks


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a module must accept."""

    tokens: int
    of: str  # the dataset
    masked: bool = False  # some of its tokens are no targets: ranks say which


def try_module(run: Run, kind: str, vocabulary: Vocabulary | None) -> list[str]:
    """Refuse a module that cannot be built, called, given every token, or trained.

    `kind` is what the ranks run on, "cpu" or "cuda". Without `vocabulary` only token 0 is tried.
    Return warnings: what may end the run and is not certain.
    """
    with _isolated():
        try:
            model, loss = _build_module(run), _user_loss(run)
        except PenstockError as error:
            if NO_GROUP in str(error):
                return []
            raise
        return _ModuleTrial(run, kind, vocabulary, model, loss).warnings()


def try_loss(run: Run, kind: str, vocab: int, certain: bool) -> None:
    """Refuse an own loss of a built-in model that cannot be called or trained by.

    It gets random logits as a rank gives them. `certain` is False where the vocabulary is a guess:
    what the loss raises, or NaN, may come from that.
    """
    code = loss_code(run.train.loss)
    assert code is not None
    with _isolated():
        loss = _user_loss(run)
        assert loss is not None
        count = max(2, min(2 * run.sequence, LOSS_LOGITS // vocab))
        draw = torch.Generator().manual_seed(run.train.seed)
        logits_nv = torch.randn(count, vocab, generator=draw).to(COMPUTE[run.train.precision])
        targets_n = torch.randint(vocab, (count,), generator=draw)
        try:
            losses_n = loss_rule(loss)(logits_nv, targets_n, None)  # the logits become gradients
        except (Exception, SystemExit) as error:
            if not certain or _is_for_ranks(error, kind):
                return
            raise _user_error(code, error, "its backward pass") from error
        if not certain:
            return
        inputs = f"random logits {list(logits_nv.shape)}"
        if what := _not_finite(losses_n):
            raise _bad_number(code, f"its loss is {what}", inputs)
        if what := _not_finite(logits_nv):
            raise _bad_number(code, f"the gradient of its loss is {what}", inputs)


@dataclass
class _ModuleTrial:
    """A trial of one module with one batch."""

    run: Run
    kind: str
    vocabulary: Vocabulary | None
    model: nn.Module
    loss: TokenLoss | None

    def __post_init__(self) -> None:
        code = module_code(self.run.model.module)
        assert code is not None
        self.code: UserCode = code
        self.summed: Callable[..., Tensor] = summed_loss(self.model, self.loss, self.code)
        self.size = sum(param.numel() for param in self.model.parameters())
        rows = min(2, self.run.batch_samples)
        tokens = rows * self.run.sequence
        logits = tokens * (self.vocabulary.tokens if self.vocabulary else 1)
        self.whole = self.size * tokens <= MOST_WORK and logits <= MOST_LOGITS
        length = self.run.sequence if self.whole else min(FEW_TOKENS, self.run.sequence)
        self.shape = (rows, length)
        self.draw = torch.Generator().manual_seed(self.run.train.seed)

    def warnings(self) -> list[str]:
        """Run the trial: raise an error for a broken module, return warnings for a doubtful one."""
        trained = self.size <= MOST_GRADIENTS
        given: list[Tensor] = []
        hook = self.model.register_forward_hook(lambda *args: given.extend(tensors_in(args[-1])))
        try:
            with torch.set_grad_enabled(trained):
                total = self.summed(*self._batch())
        except (Exception, SystemExit) as error:
            self._refuse_forward(error)
            return []
        finally:
            hook.remove()
        if trained:
            self._refuse_detached(total, given)
        if self.whole and self.vocabulary:
            self._refuse_bad_numbers(total, given)
        if self.run.evaluate.tasks:
            self._refuse_no_logits()
        told = self._coarse_loss(given)
        return told + self._backward(total) if trained else told

    def _refuse_no_logits(self) -> None:
        """Refuse benchmark tasks on a module that gives its loss alone."""
        try:
            with torch.no_grad():
                call_for_logits(self.model, self._all(0))
        except NoLogits as error:
            raise PenstockError(
                f"evaluate.tasks: tasks need logits, and {self.code.words} gives none ({error}); "
                "leave the tasks out, or give logits when there are no targets"
            ) from None

    def _batch(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw tokens, targets, and which targets count.

        Real tokens are as mixed, and token 0 may be a filler. The largest token is always there.
        """
        if self.vocabulary is None:
            return self._all(0), self._all(0), None
        count = self.vocabulary.tokens
        inputs_bs, targets_bs = torch.randint(count, (2, *self.shape), generator=self.draw)
        inputs_bs[0, 0] = targets_bs[0, 0] = count - 1
        counted_bs = torch.rand(self.shape, generator=self.draw) < 0.5
        return inputs_bs, targets_bs, counted_bs if self.vocabulary.masked else None

    def _all(self, token: int) -> Tensor:
        return torch.full(self.shape, token, dtype=torch.int64)

    def _refuse_forward(self, error: BaseException) -> None:
        """Raise the error of a forward pass, or what it says about the vocabulary."""
        if self.vocabulary is not None and not _is_own_verdict(error):
            if (first := self._raised_for(0)) is not None:
                error = first
            elif last := self._raised_for(self.vocabulary.tokens - 1):
                raise self._small_vocabulary(last) from last
        if not self.whole or _is_for_ranks(error, self.kind):
            return
        shape = f"tokens of shape {self.shape}"
        raise _user_error(self.code, error, "its forward", f"; {shape}") from error

    def _raised_for(self, token: int) -> BaseException | None:
        try:
            with torch.no_grad():
                self.summed(self._all(token), self._all(token))
        except (Exception, SystemExit) as error:
            return error
        return None

    def _small_vocabulary(self, error: BaseException) -> PenstockError:
        assert self.vocabulary is not None
        count, first = self.vocabulary.tokens, error.__cause__ or error
        return PenstockError(
            f"{self.code.words}: the tokenizer of {self.vocabulary.of} has {count} tokens, and the "
            f"module fails for token {count - 1} ({type(first).__name__}: {first}); give its "
            f"embedding and its output {count} rows or more"
        )

    def _coarse_loss(self, given: list[Tensor]) -> list[str]:
        """Warn of a loss that the module itself computed in few bits."""
        narrow = (torch.bfloat16, torch.float16)
        loss = None if self.loss else next((part for part in given if part.dim() == 0), None)
        if loss is None or loss.dtype not in narrow:
            return []
        return [
            f"{self.code.words}: its loss is {str(loss.dtype).removeprefix('torch.')}, of about 3 "
            "digits, so that small changes of it are lost; compute it in fp32: logits.float()"
        ]

    def _refuse_detached(self, total: Tensor, given: list[Tensor]) -> None:
        if total.requires_grad:
            return
        what = "its output" if not any(part.requires_grad for part in given) else "its loss"
        raise PenstockError(
            f"{self.code.words}: {what} does not depend on the parameters, so that no gradient "
            "reaches them; compute it with torch operations, without .detach(), .item(), "
            "torch.no_grad() or torch.tensor(…) on the way"
        )

    def _refuse_bad_numbers(self, total: Tensor, given: list[Tensor]) -> None:
        what = _not_finite(total)
        masks = any(bool(torch.isneginf(part).any()) for part in given if part.dim() == 3)
        if not what or (masks and what == "inf"):  # a word that the module rules out was a target
            return
        own = loss_code(self.run.train.loss)
        source = next((found for part in given if (found := _not_finite(part))), "")
        inputs = f"random tokens {list(self.shape)}"
        if own and not source:
            raise _bad_number(own, f"its loss is {what}", inputs)
        output = f"its output is {source}" if source else f"its loss is {what}"
        raise _bad_number(self.code, output, inputs)

    def _backward(self, total: Tensor) -> list[str]:
        """Refuse parameters that get no gradient or a bad one: so do the ranks."""
        try:
            total.backward()
            for _ in range(MORE_BATCHES):
                if self.vocabulary is None or not self._unreached():
                    break
                self.summed(*self._batch()).backward()
        except (Exception, SystemExit) as error:
            if not self.whole or _is_for_ranks(error, self.kind):
                return []
            raise _user_error(self.code, error, "its backward pass") from error
        if missing := self._unreached():
            told = no_gradient_message(missing)
            if self.whole and self.vocabulary:
                raise PenstockError(f"{self.code.words}: {told}")
            return [f"{self.code.words}: in a trial with a few tokens {told}"]
        if self.whole and self.vocabulary:
            for name, param in self.model.named_parameters():
                if param.grad is not None and (what := _not_finite(param.grad)):
                    inputs = f"random tokens {list(self.shape)}"
                    raise _bad_number(self.code, f"the gradient of {name} is {what}", inputs)
        return []

    def _unreached(self) -> list[str]:
        named = self.model.named_parameters()
        return [name for name, p in named if p.requires_grad and p.grad is None]


def _is_for_ranks(error: BaseException, kind: str) -> bool:
    """Return whether an error here may not happen on the ranks: the code may need a GPU, or its
    peers.
    """
    return NO_GROUP in str(error) or (kind != "cpu" and not _is_own_verdict(error))


def _is_own_verdict(error: BaseException) -> bool:
    """Return whether this is our own error about the code's result, and not one that the code
    raised.
    """
    return isinstance(error, PenstockError) and not isinstance(error, OwnCodeError)


def _user_error(code: UserCode, error: BaseException, what: str, tail: str = "") -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return PenstockError(f"{code.words}: {what} raised {code.describe_error(error)}{tail}")


def _not_finite(values: Tensor) -> str:
    """Return "NaN" or "inf" if the values contain it, else ""."""
    if not values.is_floating_point() or bool(torch.isfinite(values).all()):
        return ""
    return "NaN" if bool(torch.isnan(values).any()) else "inf"


def _bad_number(code: UserCode, what: str, inputs: str) -> PenstockError:
    return PenstockError(
        f"{code.words}: {what} before the first step ({inputs}), so that no step could be taken; "
        "look for a division by 0, a logarithm or root of 0, or a softmax over nothing"
    )


def _build_module(run: Run) -> nn.Module:
    """Build the module as a rank does, in the number format of its matrix work."""
    assert run.model.module is not None
    model = build_user_module(run.model.module, run.train.seed)
    refuse_untrainable(model, run.model.module)
    if run.train.optimizer == "muon":
        refuse_no_matrix({n: p for n, p in model.named_parameters() if p.requires_grad})
    model = model.to("cpu", MASTER[run.train.precision]).train()
    for param in model.parameters():
        if param.is_floating_point():
            param.data = param.data.to(COMPUTE[run.train.precision])
    return model


def _user_loss(run: Run) -> TokenLoss | None:
    code = loss_code(run.train.loss)
    return checked_loss(import_user_function(code), code) if code else None


@contextmanager
def _isolated() -> Iterator[None]:
    """Leave this process as it was: its random numbers, imports and output.

    Modules that the user's file imports from its folder are forgotten too: the next run of this
    process may have another file of that name.
    """
    path, modules = list(sys.path), set(sys.modules)
    try:
        said = RedactedStream(sys.stderr)  # what the user's code prints is no output of ours
        with (
            torch.random.fork_rng(devices=[]),
            redirect_stdout(said),
            redirect_stderr(said),
        ):
            yield
    finally:
        own_folders = {Path(folder) for folder in sys.path} - {Path(folder) for folder in path}
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and own_folders & set(Path(file).parents):
                del sys.modules[name]
