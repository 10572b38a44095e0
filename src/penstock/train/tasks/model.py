"""A model of Penstock behind the harness's own interface for models.

Contexts, windows and stop texts follow the rules of the harness's model for transformers: a context
that is too long loses its beginning, and a text that is scored as a whole is cut into windows. Cut
texts are counted, and reported at the end.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from penstock.errors import PenstockError
from penstock.train.tasks.forward import ForwardPass, TokenRow
from penstock.train.tasks.text import TaskTokenizer

# Of `generation_kwargs`: all that is done. Another one would change what the model writes.
_KNOWN = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")
_NOTHING = {"num_beams": 1, "use_cache": True, "repetition_penalty": 1.0, "min_p": 0.0}
WRITTEN = 256  # tokens, where a task does not say

Progress = Callable[[str, int, int], None]  # what, done, of


def silent(what: str, done: int, of: int) -> None:
    """Show no progress."""


@dataclass
class Writing:
    """One text that is being written."""

    prompt: list[int]
    until: list[str]
    most: int
    sampling: dict[str, Any]  # of `TokenRow`; empty: greedy
    draws: random.Random
    written: list[int] = field(default_factory=list)
    ended: bool = False

    def row(self) -> TokenRow:
        tokens = self.prompt + self.written
        if not self.sampling:
            return TokenRow(tokens)
        return TokenRow(tokens, draw=self.draws.random(), **self.sampling)


class PenstockLM(TemplateLM):
    """The interface of the harness over a `ForwardPass`."""

    def __init__(
        self,
        forward: ForwardPass,
        tokenizer: TaskTokenizer,
        context: int,
        stop_ids: frozenset[int] = frozenset(),
        progress: Progress = silent,
    ) -> None:
        super().__init__()
        self.forward, self.text, self.max_length = forward, tokenizer, context
        self.stop_ids = stop_ids | {self.eot_token_id}
        self.progress = progress
        self.truncated = 0  # requests that lost the beginning of their context

    @property
    def eot_token_id(self) -> int:
        assert self.text.eos is not None
        return self.text.eos

    @property
    def prefix_token_id(self) -> int:
        return self.text.prefix

    @property
    def tokenizer_name(self) -> str:
        return "penstock"

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        return self.text.encode(string, add_special_tokens)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self.text.template if chat_template else ""

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self.text.render(chat_history, add_generation_prompt)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and whether it is the greedy continuation, of each request."""
        rows = [self._row(context, continuation) for _, context, continuation in requests]
        return [(float(sum_), bool(greedy)) for sum_, greedy in self._score(rows)]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[float]:
        """Return the log-likelihood of whole texts, window by window."""
        rows: list[TokenRow] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, scored in map(make_disjoint_window, windows):
                rows.append(self._row(context, scored))
                owners.append(number)
        sums = [0.0] * len(requests)
        for owner, (likely, _) in zip(owners, self._score(rows), strict=True):
            sums[owner] += likely
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Return what the model writes after each context, up to the first stop text."""
        texts = [self._begin(number, one) for number, one in enumerate(requests)]
        going = list(texts)
        while going:
            self.progress("written", len(texts) - len(going), len(texts))
            answers = self.forward("choose", [one.row() for one in going])
            for one, (token, _) in zip(going, answers, strict=True):
                self._append(one, int(token))
            going = [one for one in going if not one.ended]
        self.progress("written", len(texts), len(texts))
        return [self._finished(one) for one in texts]

    def _score(self, rows: list[TokenRow]) -> list[tuple[float, float]]:
        done = 0
        answers: list[tuple[float, float]] = [(0.0, 0.0)] * len(rows)
        # In parts, the longest first, so that progress is told and a stop is noticed.
        order = sorted(range(len(rows)), key=lambda i: -rows[i].width)
        for at in range(0, len(order), PART):
            part = order[at : at + PART]
            self.progress("scored", done, len(rows))
            for i, answer in zip(part, self.forward("score", [rows[i] for i in part]), strict=True):
                answers[i] = answer
            done += len(part)
        self.progress("scored", done, len(rows))
        return answers

    def _row(self, context: list[int], scored: list[int]) -> TokenRow:
        if len(scored) > self.max_length:
            raise PenstockError(
                f"a task scores a continuation of {len(scored)} tokens, and the model takes "
                f"{self.max_length}; leave the task out, or train with a longer data.sequence"
            )
        tokens = context + scored
        if len(tokens) > self.max_length + 1:
            self.truncated += 1
            tokens = tokens[-(self.max_length + 1) :]
        return TokenRow(tokens, len(scored))

    def _begin(self, number: int, request: Instance) -> Writing:
        context, given = request.args
        kwargs = dict(normalize_gen_kwargs(given, WRITTEN))
        extra = [
            name for name, value in kwargs.items()
            if name not in _KNOWN and _NOTHING.get(name, ...) != value
        ]  # fmt: skip
        if extra:
            raise PenstockError(
                f"task {request.task_name}: generation_kwargs has {', '.join(sorted(extra))}, "
                f"which is not built; what is: {', '.join(_KNOWN)}"
            )
        most = int(kwargs["max_gen_toks"])
        room = self.max_length - most
        if room < 1:
            raise PenstockError(
                f"task {request.task_name}: max_gen_toks = {most} leaves no room for a question, "
                f"since the model takes {self.max_length} tokens; write a smaller one into the task"
            )
        prompt = self.tok_encode(context) or [self.prefix_token_id]
        if len(prompt) > room:
            self.truncated += 1
            prompt = prompt[-room:]
        sampling: dict[str, Any] = {}
        if kwargs.get("do_sample") and float(kwargs.get("temperature", 1.0)) > 0:
            sampling = {
                "temperature": float(kwargs.get("temperature", 1.0)),
                "top_k": int(kwargs.get("top_k") or 0),
                "top_p": float(kwargs.get("top_p") or 1.0),
            }
        until = [one for one in kwargs["until"] if one]
        # A generator for each text: what one draws does not depend on the others.
        return Writing(prompt, until, most, sampling, random.Random(number))

    def _append(self, one: Writing, token: int) -> None:
        if token in self.stop_ids:
            one.ended = True
            return
        one.written.append(token)
        one.ended = len(one.written) >= one.most
        if one.until and not one.ended:
            # Long enough for every stop text, however it is cut into tokens.
            tail = self.text.decode(one.written[-self._look_back(one) :], skip_special=False)
            one.ended = any(text in tail for text in one.until)

    def _look_back(self, one: Writing) -> int:
        return 2 + max(len(text.encode()) for text in one.until)  # a token has at least a byte

    def _finished(self, one: Writing) -> str:
        text = self.text.decode(one.written)
        for stop in one.until:
            text = text.split(stop)[0]
        return text


PART = 1024  # requests between two signs of progress
