"""Documents per CPU-second of the cleaning filters, and what they keep next to datatrove.

    python benchmarks/clean.py                    # ours alone
    python benchmarks/clean.py --peer             # datatrove too (pip install datatrove spacy nltk)
    python benchmarks/clean.py --peer --differences   # and every document judged differently

The corpus is made here: sources and docstrings of the standard library, and web-like pages put
together from its prose, with what the filters look for mixed in.
"""

import argparse
import random
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.data.clean import filters
from penstock.data.clean.config import C4, Filters

DOCUMENTS = 2400
BYTES = 3000
CONFIGS = {
    "C4 as published": Filters(),
    "C4 as in FineWeb": Filters(c4=C4(terminal_punctuation=False)),
}


def corpus(documents: int, seed: int = 7) -> list[str]:
    """A third of library sources and docs as they are, the rest pages made from its sentences."""
    rng = random.Random(seed)
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in root.glob("*.py") if p.stat().st_size > BYTES)
    files += sorted((root / "pydoc_data").glob("*.py"))
    sources = [path.read_text(errors="surrogateescape") for path in files]
    found = (m for text in sources for m in re.findall(r'"""(.{80,}?)"""', text, re.S))
    blocks = [block for doc in found for block in re.split(r"\n\s*\n", doc)]
    prose = [" ".join(block.split()) for block in blocks]
    prose = [p for p in prose if 60 < len(p) < 900 and re.match(r"[A-Z][a-z' ]+ .*[.!?]$", p)]
    prose = sorted(set(prose))
    raw = []
    while len(raw) < documents // 3:
        text = rng.choice(sources)
        at = rng.randrange(max(1, len(text) - BYTES))
        raw.append(text[at : at + rng.choice([400, BYTES, BYTES, 2 * BYTES])])
    makers: list[Callable[[random.Random, list[str]], str]] = [
        page,
        page,
        page,
        with_repeats,
        with_bullets,
        with_symbols,
        with_boilerplate,
        with_short_lines,
    ]
    made = [rng.choice(makers)(rng, prose) for _ in range(documents - len(raw))]
    every = raw + made
    rng.shuffle(every)
    return every


def page(rng: random.Random, prose: list[str]) -> str:
    parts: list[str] = []
    while sum(map(len, parts)) < BYTES * rng.uniform(0.1, 1.2):
        parts.append(" ".join(rng.sample(prose, rng.randint(1, 3))))
    return rng.choice(["\n", "\n\n", "\r\n"]).join(parts)


def with_repeats(rng: random.Random, prose: list[str]) -> str:
    """Lines, sentences or runs of words again, around the thresholds."""
    lines = page(rng, prose).split("\n")
    for _ in range(rng.randint(1, 6)):
        line = rng.choice(lines)
        words = line.split(" ")
        piece = " ".join(words[: rng.randint(2, 12)])
        again = rng.choice(
            [line, piece, f"{piece} {rng.choice(prose)}", f"{piece} " * rng.randint(2, 30)]
        )
        lines.insert(rng.randrange(len(lines) + 1), again)
    return "\n".join(lines)


def with_bullets(rng: random.Random, prose: list[str]) -> str:
    share = rng.choice([0.2, 0.85, 0.9, 0.95, 1.0])
    mark = rng.choice(["- ", "• ", "* ", "  -"])
    lines = [p[: rng.randint(30, 400)] for p in rng.sample(prose, rng.randint(5, 40))]
    return "\n".join(mark + line if rng.random() < share else line for line in lines)


def with_symbols(rng: random.Random, prose: list[str]) -> str:
    """Hashes, ellipses, numbers, odd characters."""
    words = page(rng, prose).split(" ")
    kinds = [
        "#",
        "#tag",
        "...",
        "…",
        "3.14",
        "$5",
        "—",
        "::",
        "10km",
        "x=1",
        "don’t",
        "I'm",
        "★",
        "été",
    ]
    kinds += [
        "e.g.",
        "Mr. Smith",
        "U.S.",
        "a@b.example",
        "http://a.example/b-c?d=e",
        "well-known",
        "||",
        "{",
    ]
    some = rng.sample(kinds, rng.randint(1, 4))
    rate = rng.choice([0.02, 0.08, 0.1, 0.12, 0.25])
    return " ".join(f"{w} {rng.choice(some)}" if rng.random() < rate else w for w in words)


def with_boilerplate(rng: random.Random, prose: list[str]) -> str:
    notes = ["Please enable JavaScript to view this page.", "This site uses cookies to work.",
             "Home | News",
             "Read our Privacy Policy before you go on.", "Lorem ipsum dolor sit amet, and so on.",
             "It was so.[1] Then it was not.[citation needed]", "if (a) { b(); }.",
             "x" * 1200 + " is a word.",
             "Continue reading...", "Share", "Copyright © 2024. All rights reserved."]  # fmt: skip
    lines = page(rng, prose).split("\n")
    for note in rng.sample(notes, rng.randint(1, 4)):
        lines.insert(rng.randrange(len(lines) + 1), note)
    return "\n".join(lines)


def with_short_lines(rng: random.Random, prose: list[str]) -> str:
    """Menus and lists, with prose in between."""
    words = " ".join(rng.sample(prose, 12)).split(" ")
    width = rng.choice([3, 4, 5, 8, 12])
    lines = [" ".join(words[i : i + width]) for i in range(0, len(words), width)]
    return "\n".join(lines + rng.sample(prose, rng.randint(0, 8)))


def peer(config: Filters) -> Callable[[str], tuple[str | None, str]]:
    """datatrove's filters with the same thresholds: the reason, and what is left."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    assert config.c4 is not None
    steps: list[Any] = [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=config.c4.terminal_punctuation),
        FineWebQualityFilter(),
    ]

    def judge(text: str) -> tuple[str | None, str]:
        document = Document(text=text, id="0")
        for step in steps:
            verdict = step.filter(document)
            if verdict is not True:
                reason = verdict[1] if isinstance(verdict, tuple) else "dropped"
                return f"{type(step).__name__}.{reason}", document.text
        return None, document.text

    return judge


def compare(texts: list[str], config: Filters, show: bool) -> None:
    judge = peer(config)
    judge(texts[0])
    start = time.process_time()
    theirs = [judge(text) for text in texts]
    spent = time.process_time() - start
    print(f"  datatrove  {len(texts) / spent:8,.0f} documents per CPU-second")
    ours = filters.run_filters(texts, config)
    differ = [i for i, (reason, _) in enumerate(theirs) if (reason is None) != bool(ours.kept[i])]
    kept = sum(reason is None for reason, _ in theirs)
    other_text = sum(
        ours.kept[i] and reason is None and text != ours.texts[i]
        for i, (reason, text) in enumerate(theirs)
    )
    print(f"  kept {int(ours.kept.sum())} of {len(texts)}, datatrove {kept}; "
          f"{len(differ)} differ, {other_text} kept with another text")  # fmt: skip
    for (mine, other), count in Counter((ours.reason(i), theirs[i][0]) for i in differ).items():
        print(f"    {count:4} ours: {mine or 'kept'}; datatrove: {other or 'kept'}")
    if show:
        for i in differ:
            print(f"--- {i}: ours {ours.reason(i)}, datatrove {theirs[i][0]}")
            print({k: round(float(v[i]), 4) for k, v in ours.measures.items()})
            print(texts[i][:300])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--differences", action="store_true")
    options = parser.parse_args()
    texts = corpus(options.documents)
    size = sum(map(len, texts))
    print(f"{len(texts)} documents, {size / len(texts):,.0f} characters each")
    filters.run_filters(texts[:10], Filters())  # the table of characters is made once in a process
    for name, config in CONFIGS.items():
        start = time.process_time()
        found = filters.run_filters(texts, config)
        spent = time.process_time() - start
        print(f"{name}: {len(texts) / spent:,.0f} documents, {size / spent / 1e6:.1f}M characters "
              f"per CPU-second")  # fmt: skip
        print(f"  {found.counts()}")
        if options.peer:
            compare(texts, config, options.differences)


if __name__ == "__main__":
    main()
