"""An adapter beside transformers and PEFT: the same logits once it is exported, the same losses.

    python benchmarks/lora.py --steps 60

A Llama of random weights, made by transformers, is given a LoRA adapter by `penstock train` on
conversations in a JSONL file: packed, each read as if alone, the answers learned. Then

- `penstock export` writes the adapter, PEFT loads it, and its logits stand beside ours;
- the merged export is loaded by transformers alone;
- transformers, PEFT and torch.optim.AdamW train on the same samples from the same first adapter.

All in float32, where two ways of writing the same sums differ by about 1e-6 of them.
"""

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from lora_peer import (
    first_adapter,
    make_model,
    our_logits,
    our_losses,
    reference_losses,
    run_file,
    theirs,
    write_chats,
)
from penstock.launch.start import start
from penstock.run.folder import RunFolder
from penstock.run.load import load
from penstock.train.export.model import export


def main() -> None:
    parse = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parse.add_argument("--steps", type=int, default=60)
    steps = parse.parse_args().steps
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with TemporaryDirectory() as made:
        here = Path(made)
        os.environ["PENSTOCK_HOME"] = str(here / "home")
        base, data = here / "base", here / "chat.jsonl"
        make_model(base)
        write_chats(data, 2000)
        run = load(run_file(here / "lora.toml", base, data, steps))
        folder = start(run)
        ours = our_losses(folder)
        first_adapter(run, base, here / "first")
        reference = reference_losses(folder, base, here / "first", steps)
        print(f"{'step':>6} {'ours':>12} {'transformers + peft':>20} {'difference':>12}")
        for step in sorted({0, *range(9, steps, 10), steps - 1}):
            apart = ours[step] - reference[step]
            print(f"{step + 1:>6} {ours[step]:>12.6f} {reference[step]:>20.6f} {apart:>12.1e}")
        most = max(abs(a - b) for a, b in zip(ours, reference, strict=True))
        print(f"largest difference of {steps} losses: {most:.1e}")
        compare_logits(folder, base, here)


def compare_logits(folder: RunFolder, base: Path, here: Path) -> None:
    ours, tokens = our_logits(folder)
    export(folder, here / "adapter")
    export(folder, here / "merged", dtype="fp32", merged=True)
    whole = AutoModelForCausalLM.from_pretrained(here / "merged", dtype=torch.float32)
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)(tokens).logits
        loaded = theirs(base, here / "adapter")(tokens).logits
        joined = whole(tokens).logits
    print(f"largest logit: {ours.abs().max():.2f}, of {ours.numel():,}")
    print(f"  the adapter changed logits by up to   {(ours - plain).abs().max():.2f}")
    print(f"  PEFT with our adapter, apart by       {(ours - loaded).abs().max():.1e}")
    print(f"  the merged model alone, apart by      {(ours - joined).abs().max():.1e}")


if __name__ == "__main__":
    main()
