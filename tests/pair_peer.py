"""The other side of preference tuning: TRL's trainers, on the model and pairs of a run. Of SimPO
that is `CPOTrainer`, without the cross-entropy that CPO adds.

Tiny models of random weights stand for open ones, sums asked and answered for pairs. TRL gets the
rows, not our tokens, in the order in which the run reads its pairs.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from open_families import add_tokenizer, in_double, saved
from penstock.data.build.open import open_or_build
from penstock.data.read.open import open_stream
from penstock.data.read.stream import Stream
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.run.schema.run import Run

# Without white space after the last turn, which TRL counts as part of the answer and we do not.
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def pair_rows(count: int, plain: bool = False) -> list[dict[str, Any]]:
    """Sums with a right and a wrong answer; some prompts have a turn of the assistant."""
    rows = []
    for n in range(count):
        a, b = n * 7 % 23, n * 5 % 19
        asked, right, wrong = f"What is {a} plus {b}?", f"It is {a + b}.", f"No idea, {n} or so."
        if plain:
            rows.append({"prompt": f"{asked}\n", "chosen": right, "rejected": wrong})
            continue
        turns = [("user", asked)]
        if n % 3 == 0:
            turns = [("user", "Hello."), ("assistant", "Yes?"), *turns]
        rows.append(
            {
                "prompt": [{"role": who, "content": said} for who, said in turns],
                "chosen": [{"role": "assistant", "content": right}],
                "rejected": [{"role": "assistant", "content": wrong}],
            }
        )
    return rows


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_model(name: str, folder: Path, template: str = TEMPLATE) -> Path:
    """A tiny model of a family, with a tokenizer of the rows."""
    folder.mkdir(parents=True)
    texts = [json.dumps(row) for row in pair_rows(60)]
    tokenizer = Tokenizer(add_tokenizer(folder, texts, 300, template))
    torch.manual_seed(0)
    saved(name, folder, vocab_size=tokenizer.vocab, eos_token_id=tokenizer.end)
    return folder


def stream_of(run: Run) -> Stream:
    return open_stream(run, open_or_build(run))


def trl_trainer(
    run: Run,
    rows: list[dict[str, Any]],
    out: Path,
    model: Any,
    pairs: int,
    other: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """TRL's trainer for the model and the rows, on one CPU, with the settings of a run."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    train = run.train
    trainer, config, own = _of_objective(run)
    settings = config(
        output_dir=str(out),
        per_device_train_batch_size=pairs,
        max_length=run.sequence,
        beta=train.preference.beta,
        **own,
        learning_rate=run.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=train.betas[0],
        adam_beta2=train.betas[1],
        adam_epsilon=train.eps,
        weight_decay=train.weight_decay,
        max_grad_norm=train.clip,
        optim="adamw_torch",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        save_strategy="no",
        train_sampling_strategy="sequential",
        **more,
    )
    assert run.model.from_
    tokenizer = AutoTokenizer.from_pretrained(run.model.from_)
    tokenizer.pad_token = tokenizer.eos_token
    return trainer(
        model,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **(other or {}),
    )


def _of_objective(run: Run) -> tuple[Any, Any, dict[str, Any]]:
    """TRL's trainer, the class of its settings, and those that the objective alone has."""
    section = run.train.preference
    smoothing = {"label_smoothing": section.label_smoothing}
    if run.train.objective == "simpo":
        from trl.experimental.cpo import CPOConfig, CPOTrainer

        own = {"loss_type": "simpo", "simpo_gamma": section.gamma, "cpo_alpha": 0.0}
        return CPOTrainer, CPOConfig, own | smoothing
    if run.train.objective == "orpo":
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer

        return ORPOTrainer, ORPOConfig, {}
    from trl import DPOConfig, DPOTrainer

    loss_type = "ipo" if run.train.objective == "ipo" else "sigmoid"
    return DPOTrainer, DPOConfig, {"loss_type": [loss_type]} | smoothing


def their_loss(trainer: Any, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
    """TRL's loss of a batch, and what it reports beside it."""
    if not hasattr(trainer, "get_batch_loss_metrics"):
        loss = trainer._compute_loss(trainer.model, batch, False)
        return loss, {key: found[0] for key, found in trainer._metrics["train"].items()}
    if hasattr(trainer, "odds_ratio_loss"):
        trainer.odds_ratio_loss = in_width(trainer.odds_ratio_loss)
    found: tuple[Tensor, dict[str, float]] = trainer.get_batch_loss_metrics(trainer.model, batch)
    return found


def in_width(rounded: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes its arguments float32 first, without that."""

    def wide(*args: Any) -> Any:
        with patch.object(Tensor, "float", lambda tensor: tensor):
            return rounded(*args)

    return wide


def their_tokens(trainer: Any) -> list[tuple[list[int], list[int], int]]:
    """Of each row: both sequences, and the tokens of the prompt."""
    rows = list(trainer.train_dataset)
    if "prompt_input_ids" in rows[0]:
        names = ("chosen_input_ids", "rejected_input_ids", "prompt_input_ids")
        return [(one[names[0]], one[names[1]], len(one[names[2]])) for one in rows]
    return [
        (one["prompt_ids"] + one["chosen_ids"], one["prompt_ids"] + one["rejected_ids"],
         len(one["prompt_ids"]))
        for one in rows
    ]  # fmt: skip


def rows_in_order(
    stream: Stream, tokens: list[tuple[list[int], list[int], int]], count: int
) -> list[int]:
    """The rows that the first positions of the stream read, by the tokens that TRL gives them."""
    sequence = stream.row_tokens
    batch = stream.read(0, count)
    assert batch.loss is not None
    found = []
    for ids, mask in zip(batch.tokens, batch.loss, strict=True):
        for at, (chosen, rejected, prompt) in enumerate(tokens):
            both = [(0, chosen), (sequence, rejected)]
            if all(_is(ids, mask, first, side, prompt, sequence) for first, side in both):
                found.append(at)
                break
        else:
            raise AssertionError("TRL has no pair with these tokens and this mask")
    return found


def _is(ids: Any, mask: Any, first: int, side: list[int], prompt: int, sequence: int) -> bool:
    mine = ids[first : first + sequence]
    counted = mask[first : first + sequence].nonzero()[0].tolist()
    return mine[: len(side)].tolist() == side and counted == list(range(prompt, len(side)))


def in_float64(run: Run) -> Any:
    """The model of a run, as transformers loads it, in float64."""
    from transformers import AutoModelForCausalLM

    return in_double(AutoModelForCausalLM.from_pretrained(run.model.from_, dtype=torch.float32))


def batch_of(trainer: Any, rows: list[int]) -> dict[str, Tensor]:
    """TRL's batch of these rows."""
    return trainer.data_collator([trainer.train_dataset[at] for at in rows])
