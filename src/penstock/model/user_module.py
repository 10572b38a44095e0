"""The user's own model: a function in their file that builds an `nn.Module`."""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from penstock.errors import OwnCodeError, PenstockError
from penstock.model.user_loss import TokenLoss
from penstock.run.schema.code import UserCode

_SHOWN = 6  # parts of an output in a message
NO_TARGET = -100  # torch leaves this target out of sums and means by default


def build_user_module(spec: str, seed: int) -> nn.Module:
    """Call the user's `file.py:function` and check that a module comes back."""
    code = UserCode("model.module", spec)
    build = import_user_function(code)
    torch.manual_seed(seed)
    model = _call_user_code(code, build)
    if not isinstance(model, nn.Module):
        raise PenstockError(
            f"{code.words}: {code.function}() gave {type(model).__name__}, not an nn.Module"
        )
    return model


def import_user_function(code: UserCode) -> Callable[..., Any]:
    """Import the user's file and return the function that the run file names."""
    path, name = code.path, f"user_module_{code.path.stem}"
    if not path.is_file():
        example = code.function if code.function.isidentifier() else "build"
        raise PenstockError(
            f'{code.words}: no such file and function; write "path/to/file.py:{example}", '
            f"looked for {path}"
        )
    # Not under its bare stem, which may be the name of a library.
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    sys.path.insert(0, str(path.parent))  # the user's file may import its neighbours
    loader = module_spec.loader
    _call_user_code(code, lambda: loader.exec_module(module))
    found = getattr(module, code.function, None)
    if not callable(found):
        names = ", ".join(n for n, v in vars(module).items() if callable(v) and n[0] != "_")
        raise PenstockError(
            f"{code.words}: {path.name} has no function {code.function!r}; it has: {names}"
        )
    return cast(Callable[..., Any], found)


def _call_user_code(code: UserCode, call: Callable[[], Any]) -> Any:
    """Run the user's code; report what it raises as their error, which a restart would not mend."""
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise OwnCodeError(f"{code.words}: it raised {code.describe_error(error)}") from error


def refuse_untrainable(model: nn.Module, spec: str) -> None:
    """Raise an error for a module that has nothing to train, or parameters of an unusual kind."""
    for name, param in model.named_parameters():
        if is_lazy(param):
            raise PenstockError(
                f'model.module = "{spec}": {name} has no shape yet (a lazy layer); give the layer '
                "its input size, or call the module once on a small batch before it is returned"
            )
        if param.is_complex():
            raise PenstockError(
                f'model.module = "{spec}": {name} is complex, and only real parameters are '
                "trained; keep its real and imaginary parts, and join them in forward with "
                "torch.view_as_complex"
            )
    for name, part in model.named_modules():
        if getattr(part, "sparse", False) is True and isinstance(part, nn.Embedding):
            raise PenstockError(
                f'model.module = "{spec}": {name} is an embedding with sparse=True, whose '
                "gradients no optimizer here takes; leave sparse out"
            )
    if not any(param.requires_grad for param in model.parameters()):
        raise PenstockError(
            f'model.module = "{spec}": no parameter of it has requires_grad=True, so that there is '
            "nothing to train; leave it on for some"
        )


def takes_targets(model: nn.Module) -> bool:
    """Return whether forward takes the targets after the tokens, to compute a loss of its own."""
    names = list(inspect.signature(model.forward).parameters.values())
    second = names[1] if len(names) > 1 else None
    if second is None or second.kind not in (second.POSITIONAL_ONLY, second.POSITIONAL_OR_KEYWORD):
        return False
    return second.default is second.empty or second.name in ("targets", "labels")


def summed_loss(
    model: nn.Module, own: TokenLoss | None = None, code: UserCode | None = None
) -> Callable[..., Tensor]:
    """Return a function (inputs_bs, targets_bs, counted_bs = None) -> summed loss of the targets
    that count.

    The module is called with (tokens) and returns logits, or with (tokens, targets) and returns its
    own mean loss; a tuple may hold other things beside the loss. `own` is the loss of `train.loss`;
    `code` is the module as the run file names it, for messages.
    """
    wants = takes_targets(model)
    if wants and own:
        raise PenstockError(
            "train.loss: model.module takes (tokens, targets) and gives a loss of its own; remove "
            "train.loss, or let forward take the tokens alone and give logits"
        )

    def of(inputs_bs: Tensor, targets_bs: Tensor, counted_bs: Tensor | None = None) -> Tensor:
        count: Tensor | int = targets_bs.numel()
        whole_bs = targets_bs
        if counted_bs is not None:
            count = counted_bs.sum()
            if wants:  # a mean over nothing is not a number: where nothing counts, any loss × 0 is
                counted_bs = counted_bs | (count == 0)
            targets_bs = targets_bs.masked_fill(~counted_bs, NO_TARGET)
        with _explain_user_errors(code, inputs_bs):
            output = model(inputs_bs, targets_bs) if wants else model(inputs_bs)
        if own:
            losses_n = own(logits_in(output, inputs_bs).flatten(0, 1), whole_bs.flatten())
            return (losses_n if counted_bs is None else losses_n * counted_bs.flatten()).sum()
        for loss in tensors_in(output):
            if loss.dim() == 0:
                return _at_least_fp32(loss) * count
        wide = _at_least_fp32(logits_in(output, inputs_bs))
        flat = targets_bs.flatten()
        return F.cross_entropy(wide.flatten(0, 1), flat, ignore_index=NO_TARGET, reduction="sum")

    return of


def _at_least_fp32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


# Exceptions that tell of a mistake in the code. Faults of the machine and of peers are
# RuntimeErrors and OSErrors; after those a run is started again.
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    ValueError,
)


@contextmanager
def _explain_user_errors(code: UserCode | None, inputs_bs: Tensor) -> Iterator[None]:
    """Report a mistake in the user's forward as theirs: it would be the same after a restart."""
    try:
        yield
    except _MISTAKES as error:
        words = code.words if code else "model"
        what = code.describe_error(error) if code else f"{type(error).__name__}: {error}"
        shape = f"tokens of shape {tuple(inputs_bs.shape)}"
        raise OwnCodeError(f"{words}: forward raised {what}; {shape}") from error
    except RuntimeError as error:
        if "same dtype" not in str(error):
            raise
        words = code.words if code else "model"
        raise OwnCodeError(
            _mixed_formats_message(words, code.describe_error(error) if code else str(error))
        ) from error


def _mixed_formats_message(words: str, said: str) -> str:
    """Explain an operation on two number formats, from torch's own message."""
    if "Long" in said:
        return (
            f"{words}: forward computes with the token ids themselves ({said}). Tokens are whole "
            "numbers, int64 [batch, sequence]: look them up in an nn.Embedding first"
        )
    told = (
        f"{words}: forward mixes number formats ({said}). Weights are in train.precision, and "
        "buffers stay as you made them: write `.to(x.dtype)` where you use one"
    )
    narrow = "BFloat16" in said or "Half" in said
    return f'{told}, or set train.precision = "fp32"' if narrow else told


def tensors_in(given: object) -> list[Tensor]:
    """Return the tensors of a module's output, which may be one tensor or a tuple of things."""
    parts = given if isinstance(given, tuple | list) else [given]
    return [part for part in parts if isinstance(part, Tensor)]


class NoLogits(PenstockError):
    """Error of a forward pass that returned no logits for all of its tokens."""


def logits_in(given: object, inputs_bs: Tensor) -> Tensor:
    """Return the logits in a module's output."""
    for logits in tensors_in(given):
        if logits.dim() == 3 and logits.shape[:2] == inputs_bs.shape:
            return logits
    raise NoLogits(
        f"model.module: forward gave {_output_words(given)} for tokens of shape "
        f"{tuple(inputs_bs.shape)}; it must give logits [batch, sequence, vocab], or a mean loss "
        "when it takes (tokens, targets); a tuple may hold more"
    )


def call_for_logits(model: nn.Module, inputs_bs: Tensor) -> Tensor:
    """Call a module for its logits; one that takes targets is called as in training.

    Raises NoLogits for a module that gives its loss alone.
    """
    given = model(inputs_bs, inputs_bs) if takes_targets(model) else model(inputs_bs)
    return logits_in(given, inputs_bs)


def _output_words(given: object) -> str:
    """Say what a module returned: shapes of tensors, types of all else."""
    if isinstance(given, Tensor):
        return str(tuple(given.shape))
    kind = type(given).__name__
    if isinstance(given, Mapping):
        names = ", ".join(repr(name) for name in list(given)[:_SHOWN])
        return f"a {kind} with {names or 'nothing'} (return the tensor in it)"
    if isinstance(given, tuple | list):
        parts = ", ".join(_output_words(part) for part in given[:_SHOWN])
        return f"a {kind} of {parts}" if parts else f"an empty {kind}"
    return f"a {kind}"
