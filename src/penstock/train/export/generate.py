"""Text generation from the newest checkpoint of a run, on disk or left in memory by a crash."""

from dataclasses import dataclass

import torch

from penstock.data.chat.encode import chat_prompt
from penstock.data.read.run_tokenizer import read_tokenizer
from penstock.data.tokenize.special import read_special
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError, RunFailed
from penstock.guard import checkpoints
from penstock.guard.checkpoints import (
    StoredCheckpoint,
    newest_in_memory,
    problems_of,
    published_checkpoints,
)
from penstock.guard.tiers.journal_facts import (
    newer_is_gone_message,
    newest_recorded,
    no_checkpoint_message,
)
from penstock.model.user_module import NoLogits
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.train.export.model import choose_checkpoint
from penstock.train.export.sampling import sample_continuation
from penstock.train.parallel.materialize import materialize_unsharded
from penstock.train.parallel.parts import ModelParts
from penstock.train.parallel.runner import PlainRunner

TRIES = 5  # to find a checkpoint that is not deleted meanwhile
SEEDS = 2**63  # what torch takes


@dataclass(frozen=True)
class GeneratedText:
    """Text that a model wrote, and the checkpoint that it came from."""

    text: str
    step: int  # of the checkpoint
    note: str = ""  # that a newer checkpoint is gone


def newest_checkpoint(folder: RunFolder) -> tuple[StoredCheckpoint, str]:
    """Return the newest checkpoint, and a note if a newer one is gone.

    A running run may delete a checkpoint while it is read.
    """
    for _ in range(TRIES):
        recorded = newest_recorded(folder)  # first: a run at work publishes newer ones
        saved = published_checkpoints(folder.checkpoints)
        memory = newest_in_memory(folder, load(folder.run_file))
        if memory and (not saved or memory.step > saved[0].step):
            return memory, ""
        if not saved:
            raise PenstockError(no_checkpoint_message(folder))
        try:
            wrong = problems_of(folder, load(folder.run_file), saved[0])
        except FileNotFoundError:
            continue
        if not wrong:
            return saved[0], newer_is_gone_message(recorded, saved[0].step)
        if saved[0].path.exists():
            raise RunFailed(f"{saved[0].path} cannot be used: {'; '.join(wrong)}")
    raise RunFailed(
        f"run '{folder.name}' deletes its checkpoints faster than they can be read; raise "
        "guard.keep, or wait for its end"
    )


def _refuse_text(text: object) -> None:
    if not isinstance(text, str):
        raise PenstockError(f"text: {text!r} is a {type(text).__name__}; give text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PenstockError(
            f"text: {text!r} is not UTF-8; type it in a terminal with UTF-8, or pass it so"
        ) from None


def load_parts(run: Run, vocab: int, saved: StoredCheckpoint, device: torch.device) -> ModelParts:
    """Build a run's model in one process, with the weights of a checkpoint."""
    model = materialize_unsharded(run, vocab, device)
    parts = ModelParts([model.eval()], keeps_frozen=run.model.module is not None)
    # Tensors in none of these are filled already.
    named = {**parts.trained(), **parts.frozen(), **parts.named_buffers()}
    checkpoints.load(saved, {f"model/{n}": t.detach() for n, t in named.items()}, None)
    return parts


def generate_text(
    folder: RunFolder,
    text: str,
    count: int,
    temperature: float,
    seed: int,
    chat: bool = False,
    best: bool = False,
) -> GeneratedText:
    """Continue `text` with the run's model; with `chat`, answer it."""
    _refuse_text(text)
    if not 0 <= seed < SEEDS:
        raise PenstockError(f"--seed {seed}: write a number from 0 to {SEEDS - 1}")
    saved, note = (
        (choose_checkpoint(folder, best=True)[0], "") if best else newest_checkpoint(folder)
    )
    run = load(folder.run_file)
    kept = read_tokenizer(run, folder)
    content = kept.content
    if chat and not kept.masked and not read_special(content).template:
        raise PenstockError(
            f"--chat: run '{folder.name}' was not trained on conversations and its tokenizer has "
            "no chat template, so it does not know turns; leave --chat out, or train it on "
            "conversations (docs/finetune.md)"
        )
    tokenizer = Tokenizer.from_json(content)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = load_parts(run, kept.vocab, saved, device)
    prompt = chat_prompt(content, text) if chat else tokenizer.encode(text).tolist()
    logits = PlainRunner(parts).logits
    try:
        written = sample_continuation(
            logits,
            prompt or [tokenizer.end],
            count,
            run.sequence,
            seed,
            temperature,
            stop_at=tokenizer.end,
            device=device,
        )
    except NoLogits as error:
        raise PenstockError(
            f"run '{folder.name}': its module gives a loss and no logits, so it cannot write text "
            f"({error})"
        ) from None
    return GeneratedText(tokenizer.decode(written), saved.step, note)
