"""Raw files of conversations in a run: found out by their fields, used whole, packed, masked."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from penstock.data.build import build as build_module
from penstock.data.build.checks import first_rows_note, refuse_no_documents
from penstock.data.build.listing import list_sources
from penstock.data.build.open import open_dataset
from penstock.data.build.rejected import cut_documents_note, rejected_rows_note
from penstock.data.read.dataset import Dataset
from penstock.data.recipe.load import raw_recipe, recipe_of
from penstock.data.sources.guess import PAIRS, guess_fields
from penstock.data.tokenize.tokenizer import Tokenizer
from penstock.errors import PenstockError

CHAT = [
    {
        "messages": [
            {"role": "user", "content": f"Ask {n}?"},
            {"role": "assistant", "content": "Yes"},
        ]
    }
    for n in range(40)
]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ end_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build_module, "default_workers", lambda sources: 1)
    monkeypatch.chdir(tmp_path)


def write(path: str, rows: list[dict[str, object]]) -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mask_of(dataset: Dataset) -> np.ndarray:
    mask = dataset.loss_mask(np.array([0]), dataset.tokens)
    assert mask is not None
    return mask[0]


def a_tokenizer(template: str = "") -> str:
    """The folder of a model with a tokenizer, and a chat template if one is given."""
    dataset = open_dataset(write("seen.jsonl", [{"text": "Ask me? Yes. " * 9}]), vocab=300)
    folder = Path("model")
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(dataset.tokenizer_json())
    if template:
        (folder / "chat_template.jinja").write_text(template)
    return "model"


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        ({"messages": [], "text": "x"}, {"messages": "messages"}),
        ({"conversations": []}, {"messages": "conversations"}),
        ({"text": "x", "prompt": "a", "completion": "b"}, {}),
        ({"other": 1}, {}),
        *(({p: "a", r: "b", "x": 1}, {"prompt": p, "response": r}) for p, r in PAIRS),
    ],
)
def test_the_first_row_decides_the_kind_of_rows(row, rows):
    assert guess_fields(write("a.jsonl", [row, {"messages": []}])) == rows


def test_a_damaged_first_line_and_a_packed_file_in_a_folder():
    Path("folder").mkdir()
    Path("folder/notes.md").write_text("text")
    content = "{broken\n\n" + json.dumps(CHAT[0])
    Path("folder/chat.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    assert guess_fields("folder") == guess_fields("folder/*.gz") == {"messages": "messages"}
    assert guess_fields("nothing.jsonl") == {}


def test_parquet_rows():
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"prompt": ["a"], "completion": ["b"]}), "a.parquet")
    assert guess_fields("a.parquet") == {"prompt": "prompt", "response": "completion"}
    Path("b.parquet").write_bytes(b"no parquet")
    assert guess_fields("b.parquet") == {}


def test_conversations_are_all_kept_packed_and_only_answers_count():
    twice = CHAT + CHAT[:3]  # copies were put there on purpose
    spec, model = write("chat.jsonl", twice), a_tokenizer(TEMPLATE)
    dataset = open_dataset(spec, tokenizer=model, pack=32)
    assert dataset.manifest.packed == 32
    assert dataset.manifest.documents == len(twice)
    tokens, mask = dataset.read(0, dataset.tokens), mask_of(dataset)
    learned = Tokenizer(dataset.tokenizer_json()).decode(tokens[mask])
    assert learned.replace("<|end|>", "").replace("Yes", "") == ""
    assert learned.count("Yes") >= len(twice) - 4  # one cut at the border of a sample


def test_prompts_need_no_template_and_conversations_do():
    prompts = write("p.jsonl", [{"prompt": f"Ask {n}?", "completion": "Yes"} for n in range(20)])
    model = a_tokenizer()
    dataset = open_dataset(prompts, tokenizer=model, pack=16)
    mask = mask_of(dataset)
    assert 0 < np.mean(mask) < 1
    chat = write("chat.jsonl", CHAT)
    with pytest.raises(PenstockError, match=r"no chat template.*data\.chat_template"):
        open_dataset(chat, tokenizer=model, pack=16)
    assert open_dataset(chat, tokenizer=model, pack=16, chat_template="default").tokens
    Path("own.jinja").write_text(TEMPLATE)
    own = open_dataset(chat, tokenizer=model, pack=64, chat_template="own.jinja")
    text = Tokenizer(own.tokenizer_json()).decode(own.read(0, 128))
    assert "[user]" in text
    assert "[assistant]Yes" in text


def test_a_missing_template_is_refused_before_a_build():
    chat, model = write("c.jsonl", CHAT), a_tokenizer()
    with pytest.raises(PenstockError, match=r'data\.chat_template = "absent\.jinja": no such file'):
        raw_recipe(chat, model, chat_template="absent.jinja")


def test_rows_that_cannot_be_read_are_counted_aloud():
    path = write("c.jsonl", [*CHAT, {"other": 1}])
    with Path(path).open("a") as file:
        file.write('{"messages": [{"role"\n')
    made = open_dataset(path, tokenizer=a_tokenizer(TEMPLATE), pack=64).manifest
    told = rejected_rows_note(made)
    assert told.startswith("2 of 42 rows of c were kept aside (")
    assert "1 broken JSON" in told
    assert "1 no messages" in told
    assert f"`penstock data show c@{made.version}`" in told
    whole = open_dataset(write("d.jsonl", CHAT), tokenizer=a_tokenizer(TEMPLATE), pack=64)
    assert rejected_rows_note(whole.manifest) == ""


def test_conversations_without_answers_are_refused_by_what_they_lack():
    asked = [{"messages": [{"role": "user", "content": f"Ask {n}?"}]} for n in range(9)]
    model = a_tokenizer(TEMPLATE)
    with pytest.raises(PenstockError, match=r"9 by tokenize \(nothing to learn\). Every conv"):
        open_dataset(write("q.jsonl", asked), tokenizer=model, pack=64)
    some = open_dataset(write("s.jsonl", [*asked, *CHAT]), tokenizer=model, pack=64)
    assert "9 of 49 rows of s were kept aside (9 nothing to learn)" in rejected_rows_note(
        some.manifest
    )


def test_text_is_built_as_before():
    made = raw_recipe(write("t.jsonl", [{"text": "x"}]), pack=64, chat_template="default")
    assert made.tokens.pack == 0
    assert made.tokens.chat_template is None
    assert made.dedup.documents


def test_an_array_and_a_table_are_guessed_and_built_as_lines_are():
    rows = [{"instruction": f"Add {n}.", "input": "", "output": "Yes"} for n in range(40)]
    of_lines = open_dataset(write("a.jsonl", rows), vocab=300, pack=64)
    Path("b.json").write_text(json.dumps(rows, indent=4))
    Path("c.csv").write_text(
        "instruction,input,output\n" + "".join(f"Add {n}.,,Yes\n" for n in range(40))
    )
    fields = {"prompt": "instruction", "response": "output"}
    assert guess_fields("a.jsonl") == guess_fields("b.json") == guess_fields("c.csv") == fields
    for path in ("b.json", "c.csv"):
        same = open_dataset(path, vocab=300, pack=64)
        assert same.manifest.tokens == of_lines.manifest.tokens
        assert same.manifest.tokenizer == of_lines.manifest.tokenizer
        assert mask_of(same).sum() == mask_of(of_lines).sum()


def test_text_beside_conversations_is_kept_aside_and_counted():
    Path("folder").mkdir()
    write("folder/train.jsonl", CHAT)
    Path("folder/README.md").write_text("About these rows.")
    model = a_tokenizer(TEMPLATE)
    made = open_dataset("folder", tokenizer=model, pack=64).manifest
    assert made.documents == len(CHAT)
    assert made.counts["read"] == {"kept": len(CHAT), "text beside conversations": 1}
    Path("folder/train.jsonl").unlink()
    Path("r.toml").write_text('[[source]]\npath = "folder"\nmessages = "messages"\n')
    with pytest.raises(PenstockError, match=r"README\.md: text beside conv.*no 'messages'"):
        open_dataset("r.toml")


def test_text_that_is_not_utf8_names_the_recipe_to_write():
    Path("articles").mkdir()
    for n in range(4):
        Path(f"articles/{n}.txt").write_bytes(
            f"Caf\u00e9 number {n}, and more. ".encode("latin-1") * 9
        )
    with pytest.raises(PenstockError) as refused:
        open_dataset("articles", vocab=300)
    said = str(refused.value)
    assert said.startswith("Dataset 'articles': no document is left.")
    assert said.count('encodings = ["utf-8", "latin-1"]') == 1
    assert f'path = "{Path("articles").resolve()}"' in said
    Path("r.toml").write_text(said.partition(":\n")[2].partition("\nor")[0])
    assert open_dataset("r.toml").manifest.documents == 4
    Path("articles/9.txt").write_text("Plain. " * 9)
    told = rejected_rows_note(open_dataset("articles", vocab=300).manifest)
    assert told.startswith("80% OF THE ROWS ARE LOST: 4 of 5 rows")
    assert 'encodings = ["utf-8", "latin-1"]' in told
    given = recipe_of("articles", ['source.encodings=["utf-8", "latin-1"]'])
    assert build_module.build(given).manifest.documents == 5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", b'{"body": "x"}\nbroken\n'),
        ("rows.csv", b"id,body\n1,a\n"),
        ("header.csv", b"text\n"),
        ("none.json", b"[]"),
        ("latin.txt", "Café and more. ".encode("latin-1")),
        ("empty.txt", b""),
        ("rows.parquet", b"no Parquet"),
    ],
)
def test_files_without_a_usable_row_are_refused_early_with_the_words_of_the_build(name, content):
    Path("folder").mkdir()
    Path("folder", name).write_bytes(content)
    Path("folder/picture.png").write_bytes(b"no text")
    recipe = raw_recipe("folder", vocab=300)
    with pytest.raises(PenstockError) as built:
        build_module.build(recipe)
    with pytest.raises(PenstockError) as early:
        refuse_no_documents(recipe, list_sources(recipe))
    assert str(early.value) == str(built.value)
    Path("folder/z.txt").write_text("One row that can be read is enough.")
    refuse_no_documents(recipe, list_sources(recipe))


def test_rows_that_a_build_will_keep_aside_are_told_before_it(monkeypatch):
    good, broken = b'{"text": "A row that can be read."}\n', b'{"text": "caf\xe9"}\n'
    Path("rows.jsonl").write_bytes(30 * good + 20 * broken + b"[]\n")
    sources = list_sources(raw_recipe("rows.jsonl", vocab=300))
    told = first_rows_note(sources)
    said = "21 of the first 51 rows will be kept aside (20 not UTF-8, 1 not an object). The first"
    assert told.startswith(f"41% OF THE ROWS WILL BE LOST: {said} is rows.jsonl, line 31: not UTF")
    assert 'encodings = ["utf-8", "latin-1"]' in told
    monkeypatch.setattr("penstock.data.build.checks._ROWS", 32)
    assert first_rows_note(sources).startswith("2 of the first 32 rows will be kept aside (2 not")
    monkeypatch.setattr("penstock.data.build.checks._CHARACTERS", 200)
    assert first_rows_note(sources) == ""


def test_a_build_warns_aloud_of_many_lost_rows():
    notes: list[str] = []
    path = write("c.jsonl", [*CHAT, *({"other": 1} for _ in range(20))])
    model = a_tokenizer(TEMPLATE)
    open_dataset(path, lambda what, done, total: notes.append(what), model, pack=64)
    assert "warning: c.jsonl: 33% OF THE ROWS ARE LOST: 20 of 60 (20 no messages)" in notes


def test_a_build_says_that_conversations_are_used_as_they_are():
    notes: list[str] = []

    def told(what: str, done: int, total: int) -> None:
        notes.append(what)

    open_dataset(write("c.jsonl", CHAT), told, a_tokenizer(TEMPLATE), pack=64)
    said = "conversations are used as they are; copies and personal data stay"
    assert f"c: {said}" in notes
    notes.clear()
    open_dataset(write("t.jsonl", [{"text": "Some text. " * 9}]), told, vocab=300)
    assert not any(said in note for note in notes)


def test_cut_conversations_are_reported():
    long = {
        "messages": [
            {"role": "user", "content": "Ask me?"},
            {"role": "assistant", "content": "Yes " * 200},
        ]
    }
    model = a_tokenizer(TEMPLATE)
    made = open_dataset(write("c.jsonl", [*CHAT, long]), tokenizer=model, pack=64).manifest
    begin = "documents of c are longer than data.sequence = 64 and are cut: 41 became "
    assert cut_documents_note(made) == f"{begin}{made.documents} pieces"
    short = open_dataset(write("d.jsonl", CHAT), tokenizer=model, pack=64).manifest
    assert cut_documents_note(short) == ""
