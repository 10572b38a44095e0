"""The reference is made from the schema, and is up to date."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from penstock.run import fields, reference
from penstock.run.save import to_table

DOCS = Path(__file__).parents[2] / "docs" / "run-file.md"


def test_the_written_reference_is_up_to_date():
    fresh = "run: penstock schema --markdown > docs/run-file.md"
    assert DOCS.read_text(encoding="utf-8") == reference.markdown(), fresh


def test_every_field_has_a_row_with_type_and_description():
    text = reference.markdown()
    for field in fields.RUN.fields:
        assert field.info.description
        assert field.info.description.endswith(".")
        if not field.section:
            section = ".".join(field.path[:-1])
            part = re.split(r"^## ", text, flags=re.M)
            (home,) = [p for p in part if p.startswith((f"`[{section}]`", f"`[[{section}]]`"))] or [
                p for p in part if not section and p.startswith("The top")
            ]
            assert f"| `{field.path[-1]}` | {field.kind['title']} |" in home


def test_defaults_are_those_of_an_almost_empty_run(run_of):
    table = to_table(run_of('[model]\npreset = "llama-3m"\n'))
    text = reference.markdown()
    assert table["guard"]["timeout"] == "2 min"
    assert '| `timeout` | duration | `"2 min"` |' in text
    assert '| `every` | interval or "never" | `"250 steps"` |' in text
    assert "| `betas` | two numbers | `[0.9, 0.95]` |" in text


def test_unsupported_fields_are_marked():
    text = reference.markdown()
    assert re.search(r"\| `dir` .*\*Not yet: .*\.\* \|", text)
    assert not re.search(r"\| `(wandb|webhook|tensorboard|mlflow|trackio)` .*Not yet", text)


def test_the_json_schema_has_every_field_under_its_name_in_the_file():
    schema = reference.json_schema()
    json.dumps(schema, allow_nan=False)
    assert schema["$schema"].startswith("http://json-schema.org/draft-07")
    assert "name" not in schema["required"]
    for field in fields.RUN.fields:
        node = schema
        for name in field.path:
            node = node.get("items", node)["properties"][name]
        assert node["description"].startswith(field.info.description)
    assert "from" in schema["properties"]["model"]["properties"]
    assert schema["properties"]["train"]["properties"]["warmup"]["default"] == "5%"


GOOD = [
    '[model]\npreset = "x"\n',
    'name = "a.b"\n[model]\nlayers = 2\nhidden = "4Ki"\n'
    '[train]\ntokens = "1.5T"\nwarmup = "5 steps"\n',
    '[model]\nfrom = "x"\n[train]\ntokens = 1e9\nlearning_rate = "auto"\nbetas = [0.9, 0.95]\n'
    '[guard]\ntimeout = "2.5 min"\ncheckpoint = "10 min"\n[evaluate]\nholdout = "0.5%"\n',
    '[model]\npreset = "x"\n[[data.mix]]\ndataset = "a"\nweight = 1\n'
    '[cluster]\naccelerators = "all"\n',
]
BAD = [
    "",
    '[model]\npreset = "x"\nlayer = 1\n',
    '[model]\npreset = "x"\n[train]\ntokens = "12x"\n',
    '[model]\npreset = "x"\n[train]\ntokens = true\n',
    '[model]\npreset = "x"\n[train]\noptimizer = "adam"\n',
    '[model]\npreset = "x"\n[guard]\ntimeout = 5\n',
    '[model]\npreset = "x"\n[guard]\ncheckpoint = "often"\n',
    '[model]\npreset = "x"\n[train.sync]\ncompress = "powersgd"\n',
    '[model]\npreset = "x"\n[[data.mix]]\ndataset = "a"\n',
    'name = "../x"\n[model]\npreset = "x"\n',
]


def test_an_editor_accepts_good_files_and_marks_bad_ones():
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft7Validator(reference.json_schema())
    assert all(check.is_valid(tomllib.loads(text)) for text in GOOD)
    assert not any(check.is_valid(tomllib.loads(text)) for text in BAD)


def test_the_patterns_of_the_json_schema_agree_with_the_readers():
    properties = reference.json_schema()["properties"]
    for section, field, good, bad in [
        ("train", "tokens", ["1M", "64Ki", "1.5T", "1e6"], ["12x", "", "M", "-1"]),
        ("train", "warmup", ["5%", "100 steps"], ["10 min", "steps"]),
        ("guard", "timeout", ["90 s", "2.5 min", "1 day"], ["90", "often"]),
        ("guard", "checkpoint", ["auto", "200 steps", "10 min"], ["never", "5%"]),
        ("evaluate", "every", ["never", "1 step", "2 h"], ["auto"]),
        ("evaluate", "holdout", ["0.5%", "0 %"], ["half"]),
        ("cluster", "accelerators", ["all", "4"], ["some"]),
        ("train", "learning_rate", ["auto"], ["3e-4"]),
    ]:
        pattern = re.compile(properties[section]["properties"][field]["pattern"])
        assert all(pattern.search(text) for text in good), field
        assert not any(pattern.search(text) for text in bad), field
