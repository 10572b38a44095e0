"""`penstock data`: the verbs on small datasets, one of them built by the example's own recipe."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import PenstockError, RunFailed

EXAMPLE = Path(__file__).parents[2] / "examples" / "web.toml"
QUESTION = (
    "How many legs do eleven spiders and four ants have together, if two of the spiders have lost "
    "one leg each?"
)
NOUNS = (
    "river mill bridge market church stone village teacher window garden winter letter "
    "captain harbour island forest mountain kitchen painter doctor soldier farmer baker "
    "sailor meadow castle lantern blanket engine railway station ticket corner ceiling pocket "
    "basket summer thunder feather silver copper velvet marble timber cotton barley orchard "
    "cellar chimney saddle anchor compass"
)
SMALL = (
    "the",
    "of the",
    "and a",
    "that",
    "we have",
    "with",
    "to the",
    "under",
    "by our",
    "she saw",
)


def say(*words: str) -> str:
    done = CliRunner().invoke(app, ["data", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def told(kind: type[PenstockError], *words: str) -> str:
    done = CliRunner().invoke(app, ["data", *words])
    assert isinstance(done.exception, kind), done.output
    return done.stderr + str(done.exception)


def pages() -> list[dict[str, str]]:
    """Forty good pages, copies of some, and pages for several reasons to be dropped."""
    draw = random.Random(0)
    texts = ["\n".join(_sentence(draw) for _ in range(12)) for _ in range(40)]
    texts[7] += "\nMail jane@example.com, and write \x1b[31m <script>alert(1)</script> in a letter."
    texts += texts[:4]
    own = "\n".join(_sentence(draw) for _ in range(12))
    texts += [f"{own}\n{QUESTION}", "Die Donau ist ein Fluss in Europa. " * 20, "Buy! " * 99]
    return [{"text": text, "url": f"https://a.example/{i}"} for i, text in enumerate(texts)]


def _sentence(draw: random.Random) -> str:
    """No run of words comes twice, or it would be dropped for that."""
    pairs = (f"{draw.choice(SMALL)} {draw.choice(NOUNS.split())}" for _ in range(8))
    return f"{' '.join(pairs).capitalize()}."


@pytest.fixture(scope="module")
def web(home, tmp_path_factory) -> str:
    """Build the dataset that examples/web.toml makes of a few pages."""
    folder = tmp_path_factory.mktemp("web")
    shutil.copy(EXAMPLE, folder / "web.toml")
    (folder / "pages").mkdir()
    lines = [json.dumps(page) for page in pages()]
    (folder / "pages" / "a.jsonl").write_text("\n".join([*lines, '{"text": "cut']) + "\n")
    (folder / "eval").mkdir()
    (folder / "eval" / "quiz.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    shown = say("build", str(folder / "web.toml"), "tokens.vocab=512", "--workers", "1")
    name = re.findall(r"web@[0-9a-f]{12}", shown)[:1]
    assert f"penstock train run.toml data.dataset={name[0]}" in shown
    assert "language.other" in shown
    again = say("build", str(folder / "web.toml"), "tokens.vocab=512", "-q", "--json")
    assert json.loads(again)["dataset"] == name[0]
    return name[0]


@pytest.fixture
def copied(tiny, home, tmp_path) -> Path:
    """Copy the small dataset, to be damaged."""
    return Path(shutil.copytree(home / "datasets" / tiny, tmp_path / tiny))


def test_the_example_drops_what_its_comments_say(web):
    shown = json.loads(say("show", web, "--json"))
    dropped = {f"{s['name']}: {why}": n for s in shown["stages"] for why, n in s["reasons"].items()}
    assert dropped["clean: language.other"] >= 1
    assert [n for why, n in dropped.items() if why.startswith("deduplicate")]
    assert sum(n for why, n in dropped.items() if why.startswith("decontaminate")) == 1
    assert 300 < shown["vocab"] <= 512
    for stage in shown["stages"]:
        assert stage["kept"] + sum(stage["reasons"].values()) == stage["documents"]


def test_show_tells_where_documents_went(web, tiny):
    text = say("show", web)
    for word in (
        "came in",
        "clean",
        "− language.other",
        "languages: en",
        "crawl",
        "personal.email",
    ):
        assert word in text
    assert tiny in say("show", tiny)


def test_the_page_is_written_whole(web, tmp_path):
    page = tmp_path / "web.html"
    assert say("show", web, "--html", str(page)) == ""
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert html.rstrip().endswith("</html>")
    assert "<script" not in html
    assert f"@{web.partition('@')[2]}" in html
    assert "cannot be written" in told(
        PenstockError, "show", web, "--html", str(tmp_path / "no" / "web.html")
    )


def test_sample_gives_documents_back_as_text(web):
    texts = [page["text"] for page in pages()]
    found = json.loads(say("sample", web, "-n", "5", "--json"))
    assert len(found) == 5
    for one in found:
        place = int(one["columns"]["url"].rpartition("/")[2])
        assert one["text"].split("\n")[0] in texts[place]
        assert one["source"] == "crawl"
        assert 0 < one["score"] <= 1
    assert found == json.loads(say("sample", web, "-n", "5", "--json"))
    other = json.loads(say("sample", web, "-n", "5", "--seed", "1", "--json"))
    assert [one["id"] for one in other] != [one["id"] for one in found]


def test_sample_where_and_dropped(web):
    one, *_ = json.loads(say("sample", web, "--where", "url=https://a.example/7", "--json"))
    assert "<script>alert(1)</script>" in one["text"]
    assert "jane@example.com" not in one["text"]
    assert "\x1b" not in say("sample", web, "--where", "url=https://a.example/7")
    gone = json.loads(say("sample", web, "--dropped", "language.other", "--json"))
    assert {one["text"][:4] for one in gone} == {"Die ", "Buy!"}
    assert len(json.loads(say("sample", web, "--dropped", "language", "-n", "1", "--json"))) == 1
    unknown = told(PenstockError, "sample", web, "--dropped", "zzzzzz")
    assert re.search(r"There are: .*clean: language.other \(2\)", unknown)
    assert "read: broken JSON (1)" in unknown
    assert "Some values of url: https://" in told(PenstockError, "sample", web, "--where", "url=x")
    assert "Columns there are:" in told(PenstockError, "sample", web, "--where", "urls=x")
    assert "write COLUMN=VALUE" in told(PenstockError, "sample", web, "--where", "url")


def test_what_reading_kept_aside_is_found_too(web, home):
    (one,) = json.loads(say("sample", web, "--dropped", "broken JSON", "--json"))
    assert one["id"] == f"a.jsonl:{len(pages()) + 1}"
    assert (one["source"], one["text"], one["score"]) == ("crawl", '{"text": "cut', None)
    assert one["detail"].startswith("broken JSON: ")
    file = home / "datasets" / web / "aside.jsonl"
    assert file.name in say("show", web).replace("\n", "")  # a long path is wrapped
    assert json.loads(say("show", web, "--json"))["aside"] == str(file)
    content = file.read_bytes()
    try:
        file.write_text("{")
        assert "cannot be read" in told(PenstockError, "sample", web, "--dropped", "broken JSON")
        file.unlink()
        assert "is missing" in told(PenstockError, "sample", web, "--dropped", "broken JSON")
        assert "aside.jsonl" not in say("show", web)
    finally:
        file.write_bytes(content)


def test_fewer_than_asked_for_are_told_with_how_many_there_were(home, tmp_path):
    rows = [json.dumps({"text": text}) for text in ("", "", *("ab cd " * n for n in range(9, 19)))]
    (tmp_path / "notes.jsonl").write_text("\n".join(rows * 15) + "\n")
    recipe = tmp_path / "notes.toml"
    recipe.write_text(
        '[[source]]\npath = "notes.jsonl"\n[clean]\npreset = "code"\n[tokens]\nvocab = 300\n'
    )
    name = json.loads(say("build", str(recipe), "--workers", "1", "-q", "--json"))["dataset"]
    try:
        for why, asked, shown in (("empty", "25", "20 of 30"), ("copy", "9", "4 of 140")):
            done = CliRunner().invoke(app, ["data", "sample", name, "--dropped", why, "-n", asked])
            assert f"{shown}: " in done.stderr, done.output
        done = CliRunner().invoke(app, ["data", "sample", name, "--dropped", "copy", "-n", "4"])
        assert done.stderr == ""
    finally:
        shutil.rmtree(home / "datasets" / name)


def test_a_source_is_found_by_the_name_that_show_prints(home, tmp_path):
    for name in ("one", "two"):
        rows = (json.dumps({"text": f"{name} {place} of these"}) for place in range(9))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    recipe = tmp_path / "both.toml"
    sources = "".join(f'[[source]]\npath = "{name}.jsonl"\n' for name in ("one", "two"))
    recipe.write_text(
        f'{sources}[clean]\npreset = "code"\n[dedup]\nnear = false\n[tokens]\nvocab = 300\n'
    )
    name = json.loads(say("build", str(recipe), "--workers", "1", "-q", "--json"))["dataset"]
    try:
        assert "two.jsonl" in say("show", name)
        found = json.loads(say("sample", name, "--where", "source=two.jsonl", "-n", "9", "--json"))
        assert len(found) == 9
        assert all(one["text"].startswith("two") for one in found)
        assert {one["source"] for one in found} == {"two.jsonl"}
        unknown = told(PenstockError, "sample", name, "--where", "source=three")
        assert "Values of source: " in unknown
        assert "one.jsonl" in unknown
    finally:
        shutil.rmtree(home / "datasets" / name)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_columns_with_names_of_ours_are_not_lost(kind, home, tmp_path):
    """They are shown and asked for beside ours, by documents that are kept and that are dropped."""
    own = {"source": "shelf", "score": "0.5", "language": "xx", "tokens": "7"}
    own["quality.heuristic"] = "good"  # as a label is called
    rows = [{"text": f"page {place} of these", "id": str(place), **own} for place in range(9)]
    rows.append(rows[0] | {"id": "copy"})
    path = tmp_path / f"own.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        lines = [",".join(row.values()) for row in ({name: name for name in rows[0]}, *rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    recipe = tmp_path / "own.toml"
    recipe.write_text(
        f'[[source]]\npath = "own.{kind}"\n[clean]\npreset = "none"\n[dedup]\nnear = false\n'
        '[label]\nuse = "heuristic"\n[tokens]\nvocab = 300\n'
    )
    name = json.loads(say("build", str(recipe), "--workers", "1", "-q", "--json"))["dataset"]
    try:
        (one,) = json.loads(say("sample", name, "--where", "columns.id=3", "--json"))
        assert one["text"] == "page 3 of these"
        assert one["id"].startswith(f"own.{kind}:")
        assert one["source"] == f"own.{kind}"
        assert one["columns"]["tokens"] > 0
        assert {name: one["columns"][f"columns.{name}"] for name in own} == own
        assert isinstance(one["columns"]["quality.heuristic"], int)
        assert "columns.score = 0.5" in say("sample", name, "--where", "columns.id=3")
        gone = json.loads(say("sample", name, "--dropped", "copy", "--json"))
        assert {row["columns"]["columns.id"] for row in gone} <= {"0", "copy"}
        said = told(PenstockError, "sample", name, "--where", "id=3")
        assert "The column id of its files is columns.id here." in said
    finally:
        shutil.rmtree(home / "datasets" / name)


def test_raw_files_are_never_built_by_a_verb_that_looks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.jsonl").write_text('{"text": "a"}\n')
    assert "is no built dataset" in told(PenstockError, "show", "notes.jsonl")


def test_conversations_have_their_roles_on_the_page(home, tmp_path):
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "You."}]
    row = json.dumps({"messages": turns})
    (tmp_path / "chats.jsonl").write_text(f"{row}\n")
    recipe = tmp_path / "chats.toml"
    recipe.write_text(
        '[[source]]\npath = "chats.jsonl"\nmessages = "messages"\n[tokens]\nvocab = 300\n'
    )
    name = json.loads(say("build", str(recipe), "--workers", "1", "-q", "--json"))["dataset"]
    try:
        say("show", name, "--html", str(tmp_path / "chats.html"))
        html = (tmp_path / "chats.html").read_text(encoding="utf-8")
        assert "&lt;|assistant|&gt;\nYou." in html
    finally:
        shutil.rmtree(home / "datasets" / name)


def test_a_dataset_without_rows_or_record_can_be_sampled(tiny):
    (one,) = json.loads(say("sample", tiny, "-n", "1", "--json"))
    assert re.fullmatch(r"def f\d+\(x\):\n    return x \+ \d\n", one["text"])
    assert "no build.json" in told(PenstockError, "sample", tiny, "--dropped", "short")


def test_verify_names_every_file_that_changed(tiny, copied):
    assert f"{tiny}: every file is as it was built" in say("verify", tiny)
    tokens, docs = (next(copied.rglob(f"*.{kind}")) for kind in ("bin", "docs"))
    content = bytearray(tokens.read_bytes())
    content[1000] ^= 1
    tokens.write_bytes(content)
    docs.write_bytes(docs.read_bytes()[:-8])
    lines = told(RunFailed, "verify", str(copied)).splitlines()
    assert [str(tokens) in lines[0], str(docs) in lines[1]] == [True, True]
    assert "2 of its files" in lines[2]
    assert f"Delete {copied}, then build it or copy it there again." in lines[2]
    done = CliRunner().invoke(app, ["data", "verify", str(copied), "--json"])
    assert len(json.loads(done.stdout)["problems"]) == 2
    tokens.unlink()
    assert "cannot be read" in told(RunFailed, "verify", str(copied))


def test_the_first_digits_of_a_version_are_enough(tiny):
    name, _, version = tiny.partition("@")
    for spec in (name, f"{name}@{version[:3]}", tiny):
        assert f"{tiny}: every file" in say("verify", spec)
    told(PenstockError, "verify", f"{name}@zzz")


def test_verify_of_a_changed_manifest_or_of_nothing(copied, tmp_path):
    manifest = copied / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"tokens"', '"tokenz"', 1))
    assert "manifest.json" in told(RunFailed, "verify", str(copied))
    assert "Known: " in told(PenstockError, "verify", "nowhere")
    told(PenstockError, "verify", str(tmp_path / "no" / "folder"))


def test_diff_tells_what_differs_and_what_is_shared(web, tiny):
    assert "are the same" in say("diff", tiny, tiny)
    found = json.loads(say("diff", tiny, web, "--json"))
    assert (found["before"], found["after"], found["shared_shards"]) == (tiny, web, 0)
    assert {"size", "recipe", "stages", "tokenizer"} <= {d["part"] for d in found["differences"]}
    assert "in common: 0 shards" in say("diff", tiny, web)


def test_ls_lists_what_is_there_also_what_is_damaged(web, tiny, home):
    bad = home / "datasets" / "bad@000000000000"
    bad.mkdir()
    (bad / "manifest.json").write_text("{")
    try:
        rows = {row["dataset"]: row for row in json.loads(say("ls", "--json"))}
        assert rows[web]["vocab"] <= 512
        assert rows[web]["where"] == json.loads(say("show", web, "--json"))["where"]
        assert rows[web]["shards"] == 1
        assert rows[web]["bytes"] > rows[web]["tokens"]
        assert "problem" in rows[bad.name]
        assert tiny in rows
        assert re.search(rf"{bad.name}\s+\d{{4}}-\d\d-\d\d\s+damaged", say("ls"))
        built = [row["built"] for row in json.loads(say("ls", "--json"))]
        assert built == sorted(built, reverse=True)
        assert rows[web]["built"] == json.loads(say("show", web, "--json"))["build"]["ended"]
    finally:
        shutil.rmtree(bad)


def test_ls_of_an_empty_home_says_how_to_start(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path))
    assert "`penstock data build RECIPE` makes one" in say("ls")


def test_a_wrong_recipe_is_told_before_anything_is_read(tmp_path):
    recipe = tmp_path / "bad.toml"
    recipe.write_text('[[source]]\npath = "x.jsonl"\nkinds = "text"\n')
    assert f"{recipe}:3: source[0].kinds: no such field" in told(
        PenstockError, "build", str(recipe)
    )
    recipe.write_text('[[source]]\npath = "x.jsonl"\n')
    assert "names no file" in told(PenstockError, "build", str(recipe), "-q")


def test_a_dataset_is_copied_to_a_url_only(tiny, tmp_path):
    assert "not a URL such as s3://" in told(PenstockError, "copy", tiny, str(tmp_path))
