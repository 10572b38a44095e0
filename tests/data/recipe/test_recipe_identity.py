"""What decides the version: everything that decides content, and nothing else."""

import json

import pytest

from penstock.data.clean import personal
from penstock.data.recipe.load import RECIPE, load_recipe
from penstock.data.recipe.recipe import Recipe

SHORTEST = '[[source]]\npath = "corpus/*.jsonl"\n'


# A change that another dataset must come of, for every field that decides content.
CHANGES = {
    "text": "body", "kind": "jsonl", "messages": "turns", "columns": ["url"], "name": "crawl",
    "separator": "--", "delimiter": ";", "encodings": ["utf-8", "cp1252"], "most_bytes": "1 MiB",
    "keep": ["de"], "stop_words": ["und"], "top": [[2, 0.5]], "duplicate": [[5, 0.5]],
    "key": "[key]", "email": "[mail]", "ip": "[ip]", "phone": "[phone]", "secret": "[secret]",
    "iban": "[iban]", "card": "[card]", "ssn": "[ssn]",
    "use": "stars", "least": 0.5, "pack": 64, "copies": [[0.5, 2]], "agree": 0.5,
    "tokenizer": "given", "loss": "all", "size": "1 MiB", "preset": "code",
}  # fmt: skip
DECIDES_NOTHING = {"path", "revision", "split", "subset", "good", "bad", "against", "chat_template"}


def _changed(field, default):
    if field.path[-1] in CHANGES:
        return CHANGES[field.path[-1]]
    if isinstance(default, bool):
        return not default
    return (default or 5) + 1


def _with(path, value, beside=None):
    table = {"source": [{"path": "x.jsonl"}], "decontaminate": {"against": ["eval.jsonl"]}}
    table["dedup"] = {"lines": {"on": True}}
    at = table
    for part in path[:-1]:
        at = at.setdefault(part, {})
        at = at[0] if isinstance(at, list) else at
    at[path[-1]] = value
    at.update(beside or {})
    return Recipe.model_validate({"name": "x", **table}).identity()


DECIDING = [
    field
    for field in RECIPE.fields
    if not field.section
    and field.path[-1] not in DECIDES_NOTHING
    and field.name not in ("name", "dedup.near.engine")
    and field.path[:2] != ("clean", "step")  # told by its code: test_clean_custom.py
]


@pytest.mark.parametrize("field", DECIDING, ids=lambda field: field.name)
def test_every_field_that_decides_content_changes_the_identity(field):
    plain = _with(("source", "path"), "x.jsonl")
    default = field.info.get_default()
    if field.name in ("source.prompt", "source.response"):
        other = {"prompt": "response", "response": "prompt"}[field.path[-1]]
        assert _with(field.path, "a", {other: "b"}) != plain
        return
    if field.name in ("source.chosen", "source.rejected"):
        names = {name: name for name in ("prompt", "chosen", "rejected")}
        packed = {"source": [{"path": "x.jsonl", **names}], "tokens": {"pack": 64}}
        before = Recipe.model_validate({"name": "x", **packed}).identity()
        packed["source"] = [{"path": "x.jsonl", **names, field.path[-1]: "other"}]
        assert Recipe.model_validate({"name": "x", **packed}).identity() != before
        return
    if field.name == "tokens.end":  # of a tokenizer that is given
        given = {"tokenizer": "a.json"}
        assert _with(field.path, "<end>", given) != _with(("tokens", "tokenizer"), "a.json")
        return
    value = _changed(field, default)
    if field.name == "decontaminate.text":
        value = ["body"]
    if field.name in ("dedup.lines.on", "clean.c4.terminal_punctuation"):
        value = not value  # on in `_with`, off in the preset
    assert _with(field.path, value) != plain, f"{field.name} = {value!r}"


def test_another_revision_of_the_recognisers_counts_only_where_they_run(monkeypatch):
    def identities():
        return [_with(("clean", "preset"), preset) for preset in ("web", "code", "none")]

    before = identities()
    monkeypatch.setattr(personal, "REVISION", personal.REVISION + 1)
    changed = [old != new for old, new in zip(before, identities(), strict=True)]
    assert changed == [True, True, False]


def test_paths_and_names_do_not_change_the_identity(tmp_path):
    identities = []
    for folder, name in (("a", "one"), ("b/c", "two")):
        file = tmp_path / folder / f"{name}.toml"
        file.parent.mkdir(parents=True)
        file.write_text(f'[[source]]\npath = "{folder}.jsonl"\n[label]\ngood=["g"]\nbad=["b"]\n')
        identities.append(load_recipe(file).identity())
    assert identities[0] == identities[1]
    assert str(tmp_path) not in json.dumps(identities[0])


def test_a_default_that_is_written_out_changes_nothing(tmp_path):
    def identity(text: str = "") -> dict[str, object]:
        file = tmp_path / "web.toml"
        file.write_text(SHORTEST + text)
        return load_recipe(file).identity()

    plain = identity()
    written = "[clean.gopher_quality]\nmin_word_characters = 3.0\nmax_words = '100K'\n"
    assert identity(written) == plain
    assert identity('[tokens]\nvocab = "32Ki"\n[dedup]\nnear = true\n') == plain
    assert json.loads(json.dumps(plain)) == plain
