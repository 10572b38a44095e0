"""Tokenization: MB per CPU-second of each engine, on one thread, and bytes a token.

    python benchmarks/tokens.py [--mb 20] [--repeats 3] [--folder TEXTS] [--peers PYTHON]

Texts are the standard library's source, or the text files of a folder, in documents of about 3 kB.
Fast engines remember pieces. `cold` is every second document in a fresh process, `new` the others
after that (what a long corpus of one kind costs), `warm` these once more. Each engine runs in a
process of its own, in batches of 256 documents; figures are medians over the repeats. The reference
and tiktoken get a tenth of the text. Ids are compared with those of `tokenizers` on the first
documents of that tenth. tiktoken runs in the Python that is named, and is left out where it is not
installed.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BATCH = 256  # documents
DOCUMENT = 3000  # characters
SLOW = ("tokenizers", "tiktoken")


def corpus(mb: float, folder: str = "") -> list[str]:
    root = Path(folder or sysconfig.get_path("stdlib"))
    texts, size = [], 0
    for path in sorted(root.rglob("*" if folder else "*.py")):
        if "site-packages" in path.parts or not path.is_file() or size >= mb * 1e6:
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a few test files are not UTF-8 on purpose
        texts += documents(text)
        size += len(text.encode())
    return texts


def documents(text: str) -> list[str]:
    """Whole lines, about DOCUMENT characters each."""
    found, held = [], ""
    for line in text.splitlines(keepends=True):
        held += line
        if len(held) >= DOCUMENT:
            found.append(held)
            held = ""
    return [*found, held] if held else found


def train_llama(texts: list[str]) -> bytes:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    engine = Tokenizer(models.BPE(ignore_merges=True))
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=16_000, initial_alphabet=alphabet, show_progress=False)
    engine.train_from_iterator(texts, trainer)
    return engine.to_str().encode()


def tiktoken_encode(content: bytes):
    import tiktoken
    from tokenizers import pre_tokenizers

    config = json.loads(content)
    unbyte = _bytes_of(pre_tokenizers.ByteLevel.alphabet())
    pattern = config["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    special = {token["content"] for token in config["added_tokens"]}
    ranks = {
        bytes(unbyte[c] for c in token): rank
        for token, rank in config["model"]["vocab"].items()
        if token not in special
    }
    engine = tiktoken.Encoding("bench", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda texts: [engine.encode_ordinary(text) for text in texts]


def _bytes_of(alphabet: list[str]) -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for U+0100 and on."""
    own = [b for b in range(256) if chr(b) in set(alphabet)]
    rest = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + k): b for k, b in enumerate(rest)}


def measure(name: str, tokenizer: Path, mb: float, folder: str) -> None:
    """In a process of its own: prints one line of JSON."""
    content = tokenizer.read_bytes()
    texts = corpus(mb / 10 if name in SLOW else mb, folder)
    if name == "tiktoken":
        encode = tiktoken_encode(content)
    else:
        from penstock.data.tokenize import fast
        from penstock.data.tokenize.special import parse_tokenizer

        config = parse_tokenizer(content)  # without the acceptance, which would warm it up
        if name == "tokenizers":
            encode = fast._reference(config)[0]
        else:
            encode = fast.FAST_ENGINES[name](config)
    rates = []
    for part in (texts[::2], texts[1::2], texts[1::2]):
        size = sum(len(text.encode()) for text in part)
        start = time.process_time()
        for at in range(0, len(part), BATCH):
            encode(part[at : at + BATCH])
        rates.append(size / 1e6 / (time.process_time() - start))
    some = texts[:BATCH]
    out = encode(some)
    ids = np.concatenate(out) if name == "tiktoken" else out.ids
    print(
        json.dumps(
            {
                "rates": rates,
                "ids": hashlib.sha256(ids.astype("<u4").tobytes()).hexdigest(),
                "bytes": sum(len(text.encode()) for text in some) / len(ids),
            }
        )
    )


def patterns(texts: list[str]) -> None:
    """Bytes a token on every second document, for merges learned from the others."""
    from tokenizers import Tokenizer

    from penstock.data.tokenize import tokenizer
    from penstock.data.tokenize import train as token_train

    for vocab in (4096, 32_768):
        for name, pattern in [
            ("penstock", token_train.SPLIT_PATTERN),
            ("penstock for code", tokenizer._PIECES),
            ("Llama-3's", LLAMA),
        ]:
            content = tokenizer.train_bpe(texts[::2], vocab, pattern, ["<|end|>"])
            engine = Tokenizer.from_str(content.decode())
            ids = sum(len(one.ids) for one in engine.encode_batch_fast(texts[1::2]))
            size = sum(len(text.encode()) for text in texts[1::2])
            print(f"{vocab:6} tokens, {name:18} {size / ids:.3f} bytes/token", flush=True)


def show(title: str, content: bytes, options: argparse.Namespace) -> None:
    from penstock.data.tokenize.fast import FAST_ENGINES, FastTokenizer

    environment = os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    print(f"{title}: FastTokenizer takes {FastTokenizer(content).engine}", flush=True)
    expected = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(content)
        for name in ["tokenizers", *FAST_ENGINES, "tiktoken"]:
            python = options.peers if name == "tiktoken" else sys.executable
            call = [python, __file__, "--mb", str(options.mb), "--one", name, str(path)]
            runs = [
                subprocess.run(
                    [*call, "--folder", options.folder],
                    capture_output=True,
                    text=True,
                    env=environment,
                )
                for _ in range(options.repeats)
            ]
            if runs[0].returncode:
                print(f"  {name:18} -  {runs[0].stderr.strip().splitlines()[-1][:90]}")
                continue
            got = [json.loads(run.stdout) for run in runs]
            expected = expected or got[0]["ids"]
            same = "same ids" if all(one["ids"] == expected for one in got) else "OTHER IDS"
            cold, new, warm = (
                statistics.median(rates)
                for rates in zip(*(one["rates"] for one in got), strict=True)
            )
            print(
                f"  {name:18} cold {cold:6.1f}  new {new:6.1f}  warm {warm:6.1f} MB/CPU-s"
                f"  {got[0]['bytes']:.2f} bytes/token  {same}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default="")
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--patterns", action="store_true", help="bytes a token, no rates")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], Path(options.one[1]), options.mb, options.folder)
        return
    from penstock.data.tokenize.tokenizer import train_code_tokenizer
    from penstock.data.tokenize.train import train_tokenizer

    if options.patterns:
        patterns(corpus(options.mb, options.folder))
        return
    some = corpus(options.mb, options.folder)[1::7]
    show("penstock, 32,768 tokens", train_tokenizer(some, 32_768), options)
    show("penstock for code, 4,096 tokens", train_code_tokenizer(some, 4096).to_json(), options)
    show("Llama-3's pattern, 16,000 tokens", train_llama(some), options)


if __name__ == "__main__":
    main()
