"""Memory of `penstock data build` as the set grows: the most that its processes held at once.

    python benchmarks/build_memory.py [--documents 20000,80000,320000] [--workers 2]

Documents of 3 kB are put together from sentences of the standard library, a tenth of them near
copies of earlier ones, in files of 50,000; all stages run (web filters, exact and near duplicates,
a trained tokenizer), and most documents stay. Memory is the proportional share of all processes,
looked at five times a second: a page that two of them share counts once. `own` is what only they
can free; the rest is mapped files, which the kernel drops when it needs the room.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

RECIPE = """
name = "growth"
[[source]]
path = "corpus"
[clean]
preset = "web"
gopher_quality = { min_alphabetic_words = 0.6 }
[dedup]
near = true
[tokens]
vocab = 16384
"""
PER_FILE = 50_000


def sentences() -> list[str]:
    root = Path(sysconfig.get_path("stdlib"))
    text = "\n".join(
        path.read_text("utf-8", "replace") for path in sorted((root / "pydoc_data").glob("*.py"))
    ) + "\n".join(path.read_text("utf-8", "replace") for path in sorted(root.glob("*.py")))
    docs = re.findall(r'"""(.{80,}?)"""', text, re.S)
    blocks = [" ".join(block.split()) for doc in docs for block in re.split(r"\n\s*\n", doc)]
    return sorted({b for b in blocks if 60 < len(b) < 600 and b[0].isupper() and b[-1] == "."})


def write(folder: Path, documents: int, per_file: int = PER_FILE) -> int:
    """The corpus on disk; returns its bytes."""
    rng, known, size = random.Random(documents), sentences(), 0
    folder.mkdir()
    before: list[str] = []
    for first in range(0, documents, per_file):
        with (folder / f"{first:09d}.jsonl").open("w") as file:
            for number in range(first, min(first + per_file, documents)):
                if before and rng.random() < 0.1:
                    text = rng.choice(before) + " " + rng.choice(known)
                else:
                    # Words drawn between the sentences keep documents apart.
                    parts, length = [], 0
                    while length < 3000:
                        words = rng.choice(known).split(" ")
                        rng.shuffle(words)
                        parts.append(" ".join(words).capitalize() + ".")
                        length += len(parts[-1]) + 1
                    text = "\n".join(parts)
                if len(before) < 1000:
                    before.append(text)
                size += file.write(json.dumps({"text": text, "number": number}) + "\n")
    return size


def family(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def held_bytes(root: int) -> tuple[int, int]:
    """Of a process and all below it: own memory, and all of it."""
    own = every = 0
    for process in family(root):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        found = dict(re.findall(r"^(Pss|Pss_Anon):\s+(\d+) kB", text, re.M))
        own += int(found.get("Pss_Anon", 0)) * 1024
        every += int(found.get("Pss", 0)) * 1024
    return own, every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", default="20000,80000,320000")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    penstock = str(Path(sys.executable).with_name("penstock"))
    heads = ("documents", "GB in", "own MiB", "all MiB", "seconds", "documents/s")
    print(" ".join(f"{head:>11}" for head in heads))
    for documents in map(int, options.documents.split(",")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            size = write(folder / "corpus", documents)
            (folder / "recipe.toml").write_text(RECIPE)
            command = [penstock, "data", "build", str(folder / "recipe.toml"), "--quiet"]
            command += ["--workers", str(options.workers)]
            environment = os.environ | {"PENSTOCK_HOME": str(folder / "home")}
            start, own, every = time.monotonic(), 0, 0
            build = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            while build.poll() is None:
                held = held_bytes(build.pid)
                own, every = max(own, held[0]), max(every, held[1])
                time.sleep(0.2)
            spent = time.monotonic() - start
            if build.returncode:
                sys.exit(f"the build of {documents} documents failed")
            figures = (
                f"{documents:,}",
                f"{size / 1e9:.2f}",
                f"{own / 2**20:,.0f}",
                f"{every / 2**20:,.0f}",
                f"{spent:.0f}",
                f"{documents / spent:,.0f}",
            )
            print(" ".join(f"{figure:>11}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
