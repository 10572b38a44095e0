"""End to end: JSONL → filters → tokens → shards, ours beside datatrove, documents per CPU-second.

    python benchmarks/pipeline.py [--documents 20000] [--peers .peers/bin/python]

The corpus is that of `clean.py`, written as JSONL. Both sides run the filters of Gopher, C4 and
FineWeb with the same thresholds on one worker, tokenize what is kept with the same tokenizer and
write it as shards. CPU seconds count every process and thread, from start to end, imports too.
Then what both kept is compared, document by document.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from clean import corpus

RECIPE = """
name = "bench"
[[source]]
path = "corpus.jsonl"
[clean]
preset = "none"
gopher_repetition = true
gopher_quality = true
c4 = {{ terminal_punctuation = false }}
fineweb = true
[dedup]
documents = false
near = false
[tokens]
tokenizer = "{tokenizer}"
"""

PEER = """
import json, sys
from pathlib import Path
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import (
    C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import JsonlWriter

folder, what = Path(sys.argv[1]), sys.argv[2]
steps = [
    JsonlReader(str(folder), glob_pattern="corpus.jsonl"),
    GopherRepetitionFilter(),
    GopherQualityFilter(),
    C4QualityFilter(filter_no_terminal_punct=False),
    FineWebQualityFilter(),
]
if what == "tokens":
    steps.append(DocumentTokenizer(
        str(folder / "peer"), tokenizer_name_or_path=str(folder / "tokenizer.json"),
        eos_token="<|end|>", shuffle_documents=False,
    ))
else:
    steps.append(JsonlWriter(str(folder / "kept"), "kept.jsonl", compression=None))
LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=str(folder / f"logs-{what}")).run()
"""


def cpu_s(command: list[str], **environment: str) -> float:
    """CPU seconds of a command and all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(folder: Path) -> tuple[float, dict[int, bool]]:
    """CPU seconds of the command, and which documents were kept, by their number."""
    home = folder / "home"
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(tokenizer=folder / "tokenizer.json"))
    penstock = str(Path(sys.executable).with_name("penstock"))
    command = [penstock, "data", "build", str(recipe), "--workers", "1", "--quiet"]
    spent = cpu_s(command, PENSTOCK_HOME=str(home))
    from penstock.data.read.dataset import Dataset

    (found,) = (home / "datasets").glob("bench@*")
    dataset = Dataset.open(found)
    rows = [row for shard in range(len(dataset.manifest.shards)) for row in dataset.rows(shard)]
    return spent, {row["columns"]["number"]: True for row in rows}


def theirs(folder: Path, python: str, documents: int) -> tuple[float, dict[int, bool]]:
    """The same for datatrove. What it kept comes from a run of its own, which is not timed."""
    start = cpu_s([python, "-c", PEER, str(folder), "tokens"])
    cpu_s([python, "-c", PEER, str(folder), "kept"])
    lines = (folder / "kept" / "kept.jsonl").read_text().splitlines()
    return start, {json.loads(line)["metadata"]["number"]: True for line in lines}


def tokenizer(texts: list[str]) -> bytes:
    from penstock.data.tokenize.tokenizer import train_code_tokenizer

    return train_code_tokenizer(texts[:2000], 16384).to_json()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--peers", help="an interpreter with datatrove: make .peers")
    parser.add_argument(
        "--peer-documents", type=int, default=4_000, help="datatrove gets the first"
    )
    options = parser.parse_args()
    texts = corpus(options.documents)
    # Some files of the library hold bytes that are no UTF-8.
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    lines = [json.dumps({"text": text, "number": i}) for i, text in enumerate(texts)]
    size = sum(len(text.encode()) for text in texts)
    print(f"{len(texts)} documents of {size / len(texts):,.0f} bytes")
    vocabulary = tokenizer(texts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_bytes(vocabulary)
        (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
        spent, kept = ours(folder)
        rate = len(texts) / spent
        print(f"penstock   {rate:8,.0f} documents per CPU-second ({spent:.1f} s), kept {len(kept)}")
    if not options.peers:
        return
    some = options.peer_documents
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_bytes(vocabulary)
        (folder / "corpus.jsonl").write_text("\n".join(lines[:some]) + "\n")
        spent, other = theirs(folder, options.peers, some)
        peer_rate = some / spent
        print(f"datatrove  {peer_rate:8,.0f} documents per CPU-second ({spent:.1f} s)")
        print(f"ratio      {rate / peer_rate:8.1f}")
    differ = sorted({i for i in kept if i < some} ^ set(other))
    print(f"of the first {some}: kept {sum(i < some for i in kept)}, datatrove {len(other)}, "
          f"{len(differ)} differ")  # fmt: skip
    for i in differ:
        print(f"  document {i}: {'kept' if i in kept else 'dropped'} here only: {texts[i][:80]!r}")


if __name__ == "__main__":
    main()
