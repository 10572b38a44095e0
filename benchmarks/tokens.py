"""Tokenization: MB per CPU-second of each engine, on the standard library's source.

    python benchmarks/tokens.py [--mb 20]

Fast engines remember pieces. `cold` is every second file in a fresh process, `new` the other files
after that (what a long corpus of one kind costs), `warm` these once more. Each engine runs in a
process of its own, on one thread, in batches of 64 files; the reference and tiktoken get a tenth of
the text. Ids are compared with those of `tokenizers` on the first files of that tenth. tiktoken is
left out where it is not installed.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np
from blake3 import blake3

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BATCH = 64  # files
SLOW = ("tokenizers", "tiktoken")


def corpus(mb: float) -> list[str]:
    texts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or size >= mb * 1e6:
            continue
        try:
            texts.append(path.read_text("utf-8"))
        except UnicodeDecodeError:
            continue  # a few test files are not UTF-8 on purpose
        size += len(texts[-1].encode())
    return texts


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


def measure(name: str, tokenizer: Path, mb: float) -> None:
    """In a process of its own: prints one line of JSON."""
    content = tokenizer.read_bytes()
    texts = corpus(mb / 10 if name in SLOW else mb)
    if name == "tiktoken":
        encode = tiktoken_encode(content)
    else:
        from penstock.data import fast_tokens

        config = fast_tokens._plain(content)  # without the acceptance, which would warm it up
        if name == "tokenizers":
            encode = fast_tokens._reference(config)[0]
        else:
            encode = fast_tokens.FAST[name](config)
    rates = []
    for part in (texts[::2], texts[1::2], texts[1::2]):
        size = sum(len(text.encode()) for text in part)
        start = time.process_time()
        for at in range(0, len(part), BATCH):
            encode(part[at : at + BATCH])
        rates.append(size / 1e6 / (time.process_time() - start))
    out = encode(texts[:BATCH])
    ids = np.concatenate(out) if name == "tiktoken" else out.ids
    print(json.dumps({"rates": rates, "ids": blake3(ids.astype("<u4").tobytes()).hexdigest()}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=float, default=20)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one[0], Path(options.one[1]), options.mb)
        return
    from penstock.data.fast_tokens import FAST, FastTokenizer
    from penstock.data.tokenizer import train

    environment = os.environ | {
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    some = corpus(4)
    with tempfile.TemporaryDirectory() as folder:
        for title, content in [
            ("penstock, 4,096 tokens", train(some, 4096).to_json()),
            ("Llama-3's pattern, 16,000 tokens", train_llama(some)),
        ]:
            path = Path(folder) / "tokenizer.json"
            path.write_bytes(content)
            print(f"{title}: FastTokenizer takes {FastTokenizer(content).engine}")
            expected = None
            for name in ["tokenizers", *FAST, "tiktoken"]:
                call = [sys.executable, __file__, "--mb", str(options.mb), "--one", name, str(path)]
                done = subprocess.run(call, capture_output=True, text=True, env=environment)
                if done.returncode:
                    why = done.stderr.strip().splitlines()[-1][:90]
                    print(f"  {name:18} -  {why}")
                    continue
                got = json.loads(done.stdout)
                expected = expected or got["ids"]
                same = "same ids" if got["ids"] == expected else "OTHER IDS"
                cold, new, warm = got["rates"]
                print(
                    f"  {name:18} cold {cold:6.1f}  new {new:6.1f}  warm {warm:6.1f} MB/CPU-s"
                    f"  {same}"
                )


if __name__ == "__main__":
    main()
