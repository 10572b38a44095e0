"""The reference of recipes is made from the schema, and is up to date."""

import json
from pathlib import Path

from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.data.recipe import reference
from penstock.data.recipe.load import RECIPE

DOCS = Path(__file__).parents[3] / "docs" / "recipe.md"


def test_the_written_reference_is_up_to_date():
    fresh = "run: penstock schema --recipe --markdown > docs/recipe.md"
    assert DOCS.read_text(encoding="utf-8") == reference.markdown(), fresh


def test_every_field_has_a_row_with_type_and_description():
    text = reference.markdown()
    for field in RECIPE.fields:
        assert field.info.description.endswith("."), field.name
        if field.section:
            brackets = f"[[{field.name}]]" if field.repeated else f"[{field.name}]"
            assert f"## `{brackets}`" in text
        else:
            assert f"| `{field.path[-1]}` | {field.kind['title']} |" in text


def test_defaults_are_shown_as_they_would_stand_in_the_file():
    text = reference.markdown()
    assert "| `min_words` | count or false | `50` |" in text
    assert '| `size` | size | `"128 MiB"` |' in text
    assert "| `columns` | list of text |  |" in text
    assert "| `path` | text | required |" in text


def test_the_json_schema_lets_true_and_false_stand_for_a_switch():
    schema = reference.json_schema()
    json.dumps(schema, allow_nan=False)
    assert schema["required"] == ["source"]
    near = schema["properties"]["dedup"]["properties"]["near"]
    assert near["anyOf"][0] == {"type": "boolean"}
    assert "agree" in near["anyOf"][1]["properties"]
    assert schema["properties"]["source"]["items"]["required"] == ["path"]


def test_the_verb_prints_both():
    run = CliRunner()
    made = run.invoke(app, ["schema", "--recipe"], catch_exceptions=False)
    assert json.loads(made.stdout) == json.loads(json.dumps(reference.json_schema()))
    text = run.invoke(app, ["schema", "--recipe", "--markdown"], catch_exceptions=False)
    assert text.stdout == reference.markdown()
