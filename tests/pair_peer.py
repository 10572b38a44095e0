"""The other side of preference tuning: TRL's DPOTrainer, on the model and pairs of a run.

Tiny models of random weights stand for open ones, sums asked and answered for pairs. TRL gets the
rows, not our tokens, in the order in which the run reads its pairs.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    from trl import DPOConfig, DPOTrainer

    train = run.train
    settings = DPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=pairs,
        max_length=run.sequence,
        beta=train.preference.beta,
        loss_type=["ipo" if train.objective == "ipo" else "sigmoid"],
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
    return DPOTrainer(
        model,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **(other or {}),
    )


def their_tokens(trainer: Any) -> list[tuple[list[int], list[int], int]]:
    """Of each row: both sequences, and the tokens of the prompt."""
    return [
        (one["prompt_ids"] + one["chosen_ids"], one["prompt_ids"] + one["rejected_ids"],
         len(one["prompt_ids"]))
        for one in trainer.train_dataset
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
