"""Recipes: what they say, what they mean, and every mistake in them told with its line."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.clean.boilerplate import Boilerplate
from penstock.data.clean.config import C4, FineWeb, GopherQuality, GopherRepetition
from penstock.data.clean.language import Language
from penstock.data.clean.personal import Personal
from penstock.data.clean.repair import Repair
from penstock.data.dedup.contamination import Overlap
from penstock.data.dedup.exact import ExactDocuments, ExactLines
from penstock.data.dedup.signatures import MinHash
from penstock.data.recipe import clean, filters
from penstock.data.recipe.dedup import DecontaminateSection, LinesSection, NearSection
from penstock.data.recipe.load import RECIPE, load_recipe
from penstock.data.recipe.recipe import Recipe
from penstock.data.sources.options import ReadOptions
from penstock.errors import PenstockError
from penstock.run import toml

SHORTEST = '[[source]]\npath = "corpus/*.jsonl"\n'


@pytest.fixture
def recipe(tmp_path):
    """recipe(text, *overrides): the text as a recipe file `web.toml`, loaded."""

    def write(text: str = SHORTEST, *overrides: str) -> Recipe:
        file = tmp_path / "web.toml"
        file.write_text(text)
        return load_recipe(file, overrides)

    return write


def test_the_shortest_recipe_means_the_web_preset(recipe, tmp_path):
    made = recipe()
    assert made.name == "web"
    assert made.source[0].path == str(tmp_path / "corpus/*.jsonl")
    assert made.source[0].label == "corpus"
    assert made.source[0].options() == ReadOptions()
    cleaning = made.cleaning()
    assert cleaning.filters.c4 == C4(terminal_punctuation=False)
    assert cleaning.language == Language(("en",))
    assert cleaning.repair == Repair()
    assert made.dedup.near_config() == MinHash()
    assert made.dedup.documents_config() == ExactDocuments()
    assert made.dedup.lines_config() is None
    assert made.decontaminate.config() is None
    assert made.label.config().use == "heuristic"


def test_fields_go_over_the_preset_and_leave_the_rest_of_it(recipe):
    text = SHORTEST + (
        "[clean]\nc4 = { min_sentences = 3 }\nfineweb = false\npersonal = { ip = false }\n"
        "[clean.gopher_quality]\nmin_words = false\n[dedup]\nlines = true\nnear = false\n"
    )
    made = recipe(text)
    cleaning = made.cleaning()
    assert cleaning.filters.c4 == C4(terminal_punctuation=False, min_sentences=3)
    assert cleaning.filters.fineweb is None
    assert cleaning.filters.gopher_quality == GopherQuality(min_words=None)
    assert cleaning.personal == Personal(ip=None)
    assert made.dedup.lines_config() == ExactLines()
    assert made.dedup.near_config() is None


def test_a_filter_that_the_preset_lacks_is_the_published_one(recipe):
    cleaning = recipe(SHORTEST + '[clean]\npreset = "none"\nc4 = true\n').cleaning()
    assert cleaning.filters.c4 == C4()
    assert (cleaning.repair, cleaning.language) == (None, None)
    assert cleaning.filters.fineweb is None


def test_conversations_are_not_judged_as_pages(recipe):
    made = recipe('[[source]]\npath = "chat.jsonl"\nmessages = "messages"\n')
    assert made.cleaning() == clean.PRESETS["code"]
    assert made.source[0].options() == ReadOptions(messages="messages")
    asked = recipe('[[source]]\npath = "qa.jsonl"\nprompt = "q"\nresponse = "a"\n').source[0]
    assert asked.options() == ReadOptions(prompt="q", response="a")
    assert recipe(SHORTEST).cleaning() == clean.PRESETS["web"]


def test_overrides_beat_the_file(recipe):
    made = recipe(SHORTEST, "tokens.vocab=65536", "dedup.near=false", "name=other")
    assert (made.tokens.vocab, made.dedup.near.on, made.name) == (65536, False, "other")


def test_urls_and_names_stay_as_they_are(recipe, tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    text = (
        '[[source]]\npath = "s3://bucket/raw/"\n[[source]]\npath = "hf:org/name"\n'
        '[label]\ngood = ["good.jsonl"]\nbad = ["/data/bad.jsonl"]\n'
        '[decontaminate]\nagainst = ["https://host/eval.jsonl"]\n[tokens]\ntokenizer = "{}"\n'
    )
    made = recipe(text.replace("{}", "mine.json"))
    assert [one.path for one in made.source] == ["s3://bucket/raw/", "hf:org/name"]
    assert [one.label for one in made.source] == ["raw", "name"]
    assert made.label.good == (str(tmp_path / "good.jsonl"),)
    assert made.label.bad == ("/data/bad.jsonl",)
    assert made.label.score == "classifier"
    assert made.decontaminate.against == ("https://host/eval.jsonl",)
    assert made.tokens.tokenizer == str(tmp_path / "mine.json")
    assert recipe(text.replace("{}", "a-dataset")).tokens.tokenizer == "a-dataset"


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("name = 'x'\n", 0, 'source: missing; write [[source]] with path = "corpus/*.jsonl"'),
        ("source = []\n", 1, "source = []: none; write [[source]]"),
        ("[[source]]\nkind = 'text'\n", 1, "source[0].path: missing"),
        (SHORTEST + "texxt = 'a'\n", 3, "no such field. Did you mean 'text'?"),
        (SHORTEST + "kind = 'xml'\n", 3, 'write "text", "jsonl", "csv", "parquet" or "arrow"'),
        (SHORTEST + "columns = 'url'\n", 3, 'not a list; write it as ["...", "..."]'),
        (SHORTEST + "encodings = ['utf-9']\n", 3, "'utf-9' is not a text encoding"),
        (SHORTEST + "separator = ''\n", 3, "not text; write for example"),
        (SHORTEST + "most_bytes = 0\n", 3, "nothing; write more than zero"),
        (SHORTEST + "prompt = 'q'\n", 3, "needs `response` beside it"),
        (SHORTEST + "messages = 'm'\ntext = 't'\n", 4, "`messages` is given too"),
        (SHORTEST + "split = 'train'\n", 3, 'only for "hf:org/name"'),
        (SHORTEST + "[clean]\nminhash = true\n", 4, "Write dedup.near instead"),
        (SHORTEST + "[clean]\nmin_words = 3\n", 4, "'min_words' belongs in [clean.gopher_quality]"),
        (SHORTEST + "[clean]\nc4 = 3\n", 4, "neither true nor false nor a table"),
        (SHORTEST + "[clean.c4]\nmin_sentences = 'x'\n", 4, "or false to switch this rule off"),
        (SHORTEST + "[clean]\nlanguage = { keep = ['eng'] }\n", 4, "Did you mean 'en'?"),
        (SHORTEST + "[clean.gopher_repetition]\ntop = [[2]]\n", 4, "each row has two numbers"),
        (SHORTEST + "[clean.gopher_repetition]\ntop = [[2, 3]]\n", 4, "a share from 0 to 1"),
        (SHORTEST + "[label]\ngood = ['a']\n", 4, "needs `bad` examples too"),
        (SHORTEST + "[label]\nuse = 'classifier'\n", 4, "no examples to learn from"),
        (SHORTEST + "[label]\ncopies = [[0.5, 1], [0, 2]]\n", 4, "scores must grow"),
        (SHORTEST + "[dedup.near]\nagree = 1.5\n", 4, "out of range"),
        (SHORTEST + "[decontaminate]\nshortest = 20\n", 4, "more than `words` = 13"),
        (SHORTEST + "[tokens]\nvocab = 10\n", 4, "too few tokens; write 300 or more"),
        (SHORTEST + "[tokens]\nloss = 'user'\n", 4, 'write "assistant", "last" or "all"'),
        (SHORTEST + "[shards]\nsize = 'big'\n", 4, 'not a size; write "64 MiB"'),
        ("", 0, "the file is empty; write [[source]]"),
        ("name = web\n", 1, 'text goes in quotes: name = "web"'),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_a_fix(recipe, tmp_path, text, line, told):
    with pytest.raises(PenstockError) as caught:
        recipe(text)
    (message,) = str(caught.value).splitlines()
    where = f"{tmp_path / 'web.toml'}:{line}:" if line else f"{tmp_path / 'web.toml'}: "
    assert message.startswith(where)
    assert told in message


def test_a_file_that_is_not_a_recipe_is_refused(tmp_path):
    with pytest.raises(PenstockError, match="a folder, not a recipe; name the file in it"):
        load_recipe(tmp_path)
    with pytest.raises(PenstockError, match=r"no such file; name raw files, or write a TOML"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "ok.toml").write_text(SHORTEST)
    with pytest.raises(PenstockError, match=r"write FIELD=VALUE, such as tokens\.vocab=65536"):
        load_recipe(tmp_path / "ok.toml", ["vocab"])


@pytest.mark.parametrize(
    ("section", "config"),
    [
        (clean.RepairSection, Repair),
        (clean.PersonalSection, Personal),
        (clean.BoilerplateSection, Boilerplate),
        (clean.LanguageSection, Language),
        (filters.GopherRepetitionSection, GopherRepetition),
        (filters.GopherQualitySection, GopherQuality),
        (filters.C4Section, C4),
        (filters.FineWebSection, FineWeb),
        (LinesSection, ExactLines),
        (NearSection, MinHash),
        (DecontaminateSection, Overlap),
    ],
)
def test_a_section_has_every_field_of_its_settings(section, config):
    settings_ = {field.name: field.default for field in dataclasses.fields(config)}
    empty = section()
    own = set(section.model_fields) - {"on", "against", "text"}
    assert own == set(settings_)
    assert {name: getattr(empty, name) for name in own} == settings_


def test_raw_files_are_repaired_and_freed_of_copies_but_not_filtered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Recipe.default("corpus/my web.jsonl.zst", tokenizer="hf:org/model")
    assert made.name == "my-web"
    assert made.source[0].path == str(tmp_path / "corpus/my web.jsonl.zst")
    assert made.tokens.tokenizer == "hf:org/model"
    assert made.cleaning().filters.rules() == ()
    assert made.cleaning().repair == Repair()
    assert made.dedup.near_config() == MinHash()
    assert Recipe.default("hf:org/name").name == "name"
    assert Recipe.default("s3://bucket/raw/*.jsonl", vocab=512).tokens.vocab == 512
    assert Recipe.default("/").name == "dataset"


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.lists(st.integers(-3, 3) | st.lists(st.floats(0, 9), max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["on", "x", "words"]), st.integers(), max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(RECIPE.fields), JUNK.filter(lambda v: v is not None)), max_size=4
    )
)
def test_junk_gives_a_recipe_or_one_clear_error(tmp_path_factory, changes):
    table: dict[str, object] = {"source": [{"path": "x"}]}
    for field, value in changes:
        at = table
        for part in field.path[:-1]:
            at = at.setdefault(part, {})
            at = at[0] if isinstance(at, list) and at and isinstance(at[0], dict) else at
            if not isinstance(at, dict):
                break
        else:
            at[field.path[-1]] = value
    file = tmp_path_factory.mktemp("junk") / "junk.toml"
    file.write_text("\n".join(toml.format_document(table)) + "\n")
    try:
        json.dumps(load_recipe(file).identity(), allow_nan=False)
    except PenstockError as error:
        for line in str(error).split("\n"):
            assert line.startswith(str(file))


def test_the_example_loads_and_says_what_its_comments_say():
    made = load_recipe(Path(__file__).parents[3] / "examples" / "web.toml")
    assert made.name == "web"
    assert made.source[0].columns == ("url", "date")
    assert made.cleaning().filters.c4 == C4(terminal_punctuation=False, curly_bracket=False)
    assert made.label.config().copies == ((0.0, 1.0), (0.9, 2.0))
