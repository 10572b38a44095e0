"""The other side of an adapter: transformers and PEFT, on the model, data and order of a run.

A tiny Llama of random weights with a tokenizer and a chat template stands for an open model; small
sums, asked and answered, are the conversations. The reference loop reads the very samples that the
run read, begins with the very adapter that it began with, and is otherwise written as anyone would
with torch.optim.AdamW.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from open_families import add_tokenizer
from penstock.data.read.batch import Batch
from penstock.data.read.open import open_planned, open_stream
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.guard import checkpoints
from penstock.guard.format.published import published_checkpoints
from penstock.model.adapter.export import write_adapter
from penstock.model.adapter.lora import add_adapters, load_base_and_adapters
from penstock.model.initialize import decoder_on_meta
from penstock.model.open.weights import OpenWeights
from penstock.run import toml
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.run.schema.run import Run
from penstock.train.parallel.materialize import materialize_unsharded
from penstock.train.step import LearningRate
from penstock.watch.facts.run_view import RunView

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def chats(count: int) -> list[dict[str, Any]]:
    """Sums with one or two questions, the same for everybody."""
    made = []
    for n in range(count):
        a, b = n * 7 % 23, n * 5 % 19
        turns = [("user", f"What is {a} plus {b}?"), ("assistant", f"It is {a + b}.")]
        if n % 3 == 0:
            turns += [("user", "And twice that?"), ("assistant", f"That is {2 * (a + b)}.")]
        made.append({"messages": [{"role": who, "content": said} for who, said in turns]})
    return made


def write_chats(path: Path, count: int) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in chats(count)))


def make_model(folder: Path, seed: int = 0) -> None:
    """A Llama as transformers saves one, with its tokenizer."""
    said = [turn["content"] for row in chats(100) for turn in row["messages"]]
    folder.mkdir()
    tokenizer = Tokenizer(add_tokenizer(folder, said, 300, TEMPLATE))
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=tokenizer.vocab, eos_token_id=tokenizer.end, **SIZES)
    model = LlamaForCausalLM(config)
    for name, param in model.named_parameters():  # at 0.02 a model this small says nothing
        if param.dim() == 2 and "embed" not in name:
            torch.nn.init.normal_(param, std=0.1)
    model.save_pretrained(folder)


def first_adapter(run: Run, base: Path, out: Path) -> None:
    """The adapter that the run begins with, as PEFT reads it."""
    assert run.model.adapter is not None
    weights = OpenWeights(base)
    decoder = decoder_on_meta(weights.shape)
    add_adapters(decoder, run.model.adapter)
    load_base_and_adapters(decoder, weights, torch.device("cpu"), run.train.seed)
    trained = {name: p for name, p in decoder.named_parameters() if p.requires_grad}
    write_adapter(out, weights.shape, weights.family, run.model.adapter, trained, str(base), {})


def theirs(base: Path, adapter: Path, trained: bool = False) -> Any:
    """The model with an adapter, loaded by transformers and PEFT."""
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter, is_trainable=trained)


def reference_losses(folder: RunFolder, base: Path, adapter: Path, steps: int) -> list[float]:
    """The losses of the run's steps, computed by transformers, PEFT and torch.optim."""
    run = load(folder.run_file)
    stream = open_stream(run, open_planned(run, folder.read_launch_record().dataset))
    model = theirs(base, adapter, trained=True)
    params = [p for p in model.parameters() if p.requires_grad]
    train, losses = run.train, []
    optimizer = torch.optim.AdamW(
        params, lr=0.0, betas=train.betas, eps=train.eps, weight_decay=train.weight_decay
    )
    for step in range(steps):
        first = step * run.batch_samples
        batch = stream.read(first, first + run.batch_samples)
        loss = _mean_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, train.clip)
        steps = run.steps(stream.samples)
        rate = LearningRate.of(train, run.learning_rate, steps).at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _mean_loss(model: Any, batch: Batch) -> Tensor:
    """Over the targets that count; with marks of documents, each is read as if alone."""
    tokens = torch.from_numpy(batch.tokens.astype("int64"))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    told: dict[str, Tensor] = {}
    if batch.starts is not None:
        starts = torch.from_numpy(batch.starts)[:, : inputs.shape[1]]
        at = torch.arange(inputs.shape[1])
        told["position_ids"] = at - torch.where(starts, at, 0).cummax(1).values
        document = starts.cumsum(1)
        same = (document.unsqueeze(2) == document.unsqueeze(1)).tril()
        told["attention_mask"] = torch.where(same, 0.0, float("-inf")).unsqueeze(1)
    logits = model(input_ids=inputs, **told).logits
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    if batch.loss is None:
        return each.mean()
    return each[torch.from_numpy(batch.loss[:, 1:]).flatten()].mean()


def run_file(path: Path, base: Path, data: Path, steps: int, **fields: Any) -> Path:
    """A run that a reference can follow: float32, one process."""
    values: dict[str, Any] = {
        "name": path.stem,
        "dir": str(path.parent / "runs"),
        "model.from": str(base),
        "model.adapter.rank": 8,
        "model.adapter.alpha": 16.0,
        "data.dataset": str(data),
        "data.sequence": 128,
        "data.across_documents": False,
        "train.steps": steps,
        "train.batch_tokens": 512,
        "train.learning_rate": 1e-3,
        "train.precision": "fp32",
        "evaluate.every": "never",
        "cluster.accelerators": 1,
        "guard.timeout": "60 s",
    } | fields
    table: dict[str, Any] = {}
    for field, value in values.items():
        *above, key = field.split(".")
        at = table
        for part in above:
            at = at.setdefault(part, {})
        at[key] = value
    path.write_text("\n".join(toml.format_document(table)) + "\n")
    return path


def our_losses(folder: RunFolder) -> list[float]:
    return [float(loss) for loss in RunView(folder).curve["loss"]]


def our_logits(folder: RunFolder) -> tuple[Tensor, Tensor]:
    """Of the newest checkpoint for some tokens, and these."""
    run = load(folder.run_file)
    model = materialize_unsharded(run, 0, torch.device("cpu")).eval()
    saved = {f"model/{n}": p.detach() for n, p in model.named_parameters() if p.requires_grad}
    checkpoints.load(published_checkpoints(folder.checkpoints)[0], saved, None)
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, run.model.shape(None).vocab, (4, 64), generator=draw)
    with torch.no_grad():
        return model(tokens), tokens
