"""Precision and recall of the personal-data recognisers by kind, beside Presidio and scrubadub.

    python benchmarks/personal.py [--part report] [--mistakes]
    python benchmarks/personal.py --peers .peers/bin/python   # presidio-analyzer and scrubadub too
    python benchmarks/personal.py --speed                     # documents per CPU-second
    python benchmarks/personal.py --library                   # what changes in Python's library

The texts are made by `personal_texts.py`. A find counts if it has the label's kind and covers at
least half of the label's characters. Finds that match no label of their kind are false.

Presidio runs with its pattern recognisers and a blank spaCy model: models of spaCy are not on PyPI,
and these kinds need none. Of both peers, kinds that the table does not have are left out.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path

from clean import DOCUMENTS, corpus
from personal_texts import KINDS, PARTS, Labelled, texts

from penstock.data.clean.personal import Personal, find_personal, scrub_texts

Spans = list[tuple[int, int, str]]

PEER = """
import json, logging, sys, time
logging.disable(logging.CRITICAL)
name, texts = sys.argv[1], json.load(sys.stdin)
if name == "presidio":
    import spacy
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from spacy.language import Language
    @Language.component("lower")  # Presidio looks for words of context among lemmas
    def lower(doc):
        for token in doc:
            token.lemma_ = token.lower_
        return doc
    blank = spacy.blank("en")
    blank.add_pipe("lower")
    class Blank(SpacyNlpEngine):
        def __init__(self):
            super().__init__()
            self.nlp = {"en": blank}
    kinds = {"EMAIL_ADDRESS": "email", "IP_ADDRESS": "ip", "PHONE_NUMBER": "phone",
             "IBAN_CODE": "iban", "CREDIT_CARD": "card", "US_SSN": "ssn"}
    least = float(sys.argv[2])
    engine = AnalyzerEngine(nlp_engine=Blank(), supported_languages=["en"])
    def find(text):
        every = engine.analyze(text=text, language="en", entities=list(kinds),
                               score_threshold=least)
        return [(r.start, r.end, kinds[r.entity_type]) for r in every]
else:
    import scrubadub
    kinds = {"email": "email", "phone": "phone", "credit_card": "card", "credential": "secret",
             "social_security_number": "ssn"}
    scrubber = scrubadub.Scrubber(locale="en_US")
    def find(text):
        return [(f.beg, f.end, kinds[f.type]) for f in scrubber.iter_filth(text) if f.type in kinds]
find(texts[0])
start = time.process_time()
found = [find(text) for text in texts]
json.dump({"found": found, "seconds": time.process_time() - start}, sys.stdout)
"""
THRESHOLD = 0.3  # of Presidio: lower ones take every number of nine digits
COVERED = {"presidio": KINDS[:6], "scrubadub": ("email", "phone", "card", "ssn", "secret")}


def ours(every: list[Labelled]) -> tuple[list[Spans], float]:
    start = time.process_time()
    found = [[(f.start, f.end, f.kind) for f in find_personal(one.text, KINDS)] for one in every]
    return found, time.process_time() - start


def peer(python: str, name: str, every: list[Labelled]) -> tuple[list[Spans], float]:
    """Runs a peer on the same texts in its own interpreter."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", PEER, name, str(THRESHOLD)],
        input=json.dumps([one.text for one in every]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    return [[tuple(span) for span in spans] for spans in answer["found"]], answer["seconds"]


def covers(found: tuple[int, int, str], label: tuple[int, int, str]) -> bool:
    """Says whether a find is of the label's kind and covers half of it."""
    both = min(found[1], label[1]) - max(found[0], label[0])
    return found[2] == label[2] and 2 * both >= label[1] - label[0]


def score(every: list[Labelled], found: list[Spans]) -> dict[str, Counter[str]]:
    """Counts by kind: labels, labels that were found, finds, finds that are right."""
    counts = {kind: Counter[str]() for kind in KINDS}
    for one, spans in zip(every, found, strict=True):
        for label in one.spans:
            counts[label[2]]["labels"] += 1
            counts[label[2]]["hit"] += any(covers(span, label) for span in spans)
        for span in spans:
            counts[span[2]]["finds"] += 1
            counts[span[2]]["right"] += any(covers(span, label) for label in one.spans)
    return counts


def cell(count: Counter[str]) -> str:
    precision = f"{100 * count['right'] / count['finds']:.1f}" if count["finds"] else "–"
    return f"{precision} / {100 * count['hit'] / count['labels']:.1f}"


def own(every: list[Labelled], found: list[Spans]) -> int:
    """Counts finds in texts with addresses that are not of the public internet."""
    groups = [one.group == "own_addresses" for one in every]
    return sum(len(spans) for is_own, spans in zip(groups, found, strict=True) if is_own)


def mistakes(every: list[Labelled], found: list[Spans]) -> None:
    for one, spans in zip(every, found, strict=True):
        for label in one.spans:
            if not any(covers(span, label) for span in spans):
                print(f"missed {label[2]:7} {one.text[label[0] : label[1]]!r} in {one.text[:90]!r}")
        for span in spans:
            if not any(covers(span, label) for label in one.spans):
                print(f"false  {span[2]:7} {one.text[span[0] : span[1]]!r} in {one.text[:90]!r}")


def library(show: bool) -> None:
    """Counts what changes in the sources of Python's standard library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    skip = {"test", "tests", "site-packages", "idle_test", "dist-packages"}
    files = [p for p in sorted(root.rglob("*.py")) if not skip & set(p.relative_to(root).parts)]
    sources = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    size = sum(map(len, sources)) / 1e6
    total = Counter[str]()
    for path, source in zip(files, sources, strict=True):
        for one in find_personal(source, KINDS):
            total[one.kind] += 1
            if show:
                line = source[source.rfind("\n", 0, one.start) + 1 :].split("\n", 1)[0].strip()
                print(f"{one.kind:7} {source[one.start : one.end][:40]!r:44} "
                      f"{path.relative_to(root)}: {line[:90]}")  # fmt: skip
    print(f"{len(files)} files, {size:.1f} MB, {sum(total.values()) / size:.1f} changes per MB")
    for kind, count in total.most_common():
        print(f"  {kind:7} {count:5} {count / size:6.2f} per MB")


def speed() -> None:
    """Times the step on the pages of `clean.py`, the best of five."""
    pages = corpus(DOCUMENTS)
    size = sum(map(len, pages))
    spent = []
    for _ in range(5):
        start = time.process_time()
        scrub_texts(pages, Personal())
        spent.append(time.process_time() - start)
    best = min(spent)
    print(f"{len(pages) / best:,.0f} documents, {size / best / 1e6:.1f}M characters a CPU-second; "
          f"{1e6 * best / len(pages):.0f} us per document")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=PARTS, default="report")
    parser.add_argument("--peers", help="an interpreter with presidio-analyzer and scrubadub")
    parser.add_argument("--mistakes", action="store_true", help="print what was missed or false")
    parser.add_argument("--library", action="store_true", help="changes in Python's own sources")
    parser.add_argument("--speed", action="store_true", help="documents per CPU-second")
    options = parser.parse_args()
    if options.speed:
        speed()
        return
    if options.library:
        library(options.mistakes)
        return
    every = texts(options.part)
    assert {field.name for field in fields(Personal)} == set(KINDS)
    results = {"penstock": ours(every)}
    if options.mistakes:
        mistakes(every, results["penstock"][0])
    for name in COVERED if options.peers else ():
        results[name] = peer(options.peers, name, every)
    changed = sum(
        a.text != b
        for a, b in zip(every, scrub_texts([o.text for o in every], Personal()).texts, strict=True)
        if not a.spans
    )
    print(f"{len(every)} texts of part `{options.part}`; {changed} of the "
          f"{sum(not o.spans for o in every)} without personal data were changed")  # fmt: skip
    print("\nprecision / recall, %\n\n| kind | labels | " + " | ".join(results) + " |")
    print("|---|---|" + "---|" * len(results))
    scores = {name: score(every, found) for name, (found, _) in results.items()}
    for kind in KINDS:
        cells = [
            cell(scores[name][kind]) if kind in COVERED.get(name, KINDS) else "not covered"
            for name in results
        ]
        print(f"| {kind} | {scores['penstock'][kind]['labels']} | " + " | ".join(cells) + " |")
    total = {
        name: sum((some[kind] for kind in COVERED.get(name, KINDS)), Counter[str]())
        for name, some in scores.items()
    }
    print(
        f"| all that it covers | {total['penstock']['labels']} | "
        + " | ".join(map(cell, total.values()))
        + " |"
    )
    for name, (found, _) in results.items():
        print(f"{name}: {own(every, found)} of its false finds are private or reserved addresses")
    for name, (_, seconds) in results.items():
        print(f"{name}: {1000 * seconds / len(every):.2f} ms of CPU per text", file=sys.stderr)


if __name__ == "__main__":
    main()
