"""The documentation: links lead somewhere, commands parse, and every page is in the list."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import VERBS, app, load_verb

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
# What was typed on a day: verbs and options of then.
WRITTEN_ONCE = (DOCS / "log.md", DOCS / "drills")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"`([^`\n]+)`")
FREE_VERBS = r"penstock (plan|simulate|rent|compare) .*"  # they plan, and start nothing
VERB = re.compile(r"[a-z][a-z-]*")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def links(path: Path) -> list[str]:
    return LINK.findall(CODE.sub("", FENCE.sub("", path.read_text())))


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    found = set[str]()
    for heading in re.findall(r"^#+ +(.+)$", FENCE.sub("", path.read_text()), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = next(i for i in range(99) if (f"{slug}-{i}" if i else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    wrong = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        where, _, anchor = link.partition("#")
        target = (page.parent / where).resolve() if where else page
        is_page = target.suffix == ".md" and target.is_file()
        if not target.exists() or (anchor and (not is_page or anchor not in anchors(target))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# One two\n[a](b.md) [c](#one-two) [d](#three) `[e](f)` [g](https://x)\n")
    assert broken(page) == ["b.md", "#three"]


def test_the_list_has_every_page() -> None:
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links(DOCS / "README.md")}
    pages = {*DOCS.glob("*.md"), *(DOCS / "design").glob("*.md")} - {DOCS / "README.md"}
    assert sorted(map(name, pages - listed)) == []


def commands(page: Path) -> Iterator[str]:
    """Yield the `penstock` commands of a page, as one would type them."""
    text = page.read_text()
    blocks = [re.sub(r"\\\n\s*", " ", block) for block in FENCE.findall(text)]
    lines = [line.strip() for block in blocks for line in block.splitlines()[1:-1]]
    for line in [*lines, *CODE.findall(FENCE.sub("", text))]:
        if found := re.match(r"(?:\$ )?(?:cd \S+ && )?(?:[A-Z_]+=\S+ )*(penstock .*)", line):
            yield from found[1].split(" · ")


def unknown(command: str) -> str:
    """Return what of a command Penstock does not know; empty if it knows all."""
    try:
        words = shlex.split(command, comments=True)[1:]
    except ValueError:  # cut off in the middle: `penstock rent --deadline "10`
        return ""
    if not words or not VERB.fullmatch(words[0]):
        return ""  # `penstock VERB`, `penstock --version`
    if words[0] not in VERBS:
        return words[0]
    here = load_verb(words.pop(0))
    while hasattr(here, "commands") and words and VERB.fullmatch(words[0]):
        if words[0] not in here.commands:
            return words[0]
        here = here.commands[words.pop(0)]
    options = {option for one in here.params for option in (*one.opts, *one.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
    return " ".join(sorted(given - options - {"--help"}))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if not any(w in (p, *p.parents) for w in WRITTEN_ONCE)], ids=name
)
def test_every_command_is_one_that_penstock_knows(page: Path) -> None:
    wrong = {command: what for command in commands(page) if (what := unknown(command))}
    assert wrong == {}


def test_an_unknown_command_is_found() -> None:
    assert unknown("penstock trian run.toml") == "trian"
    assert unknown("penstock train run.toml --frseh  # comment --no") == "--frseh"
    assert unknown("penstock data buidl web.toml") == "buidl"
    assert unknown('penstock rent run.toml --deadline "10 days"') == ""
    assert list(commands(ROOT / "README.md"))


FREE = [line for line in commands(ROOT / "README.md") if re.match(FREE_VERBS, line)]


@pytest.mark.parametrize("command", FREE)
def test_commands_of_the_readme_that_start_nothing_run_as_written(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "examples/compare" if " compare " in command else ROOT)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output


def test_every_target_of_make_in_the_documentation_exists() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        text = page.read_text()
        shown = [line for block in FENCE.findall(text) for line in block.splitlines()]
        told = [line for line in [*shown, *CODE.findall(text)] if line.startswith("make ")]
        assert told
        assert {re.sub(r"[^\w-].*", "", line[5:]) for line in told} - targets <= {"bench-"}, page
