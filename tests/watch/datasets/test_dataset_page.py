"""The page of a dataset: whole, self-contained, and safe whatever documents hold."""

import re
from html.parser import HTMLParser
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

import made_summary
from penstock.watch.datasets.page import opening, page
from penstock.watch.style.charts import histogram
from penstock.watch.style.css import PAGE_CSS
from penstock.watch.style.markup import Markup, tag

VOID = {"meta", "br", "wbr"}


class Reader(HTMLParser):
    """Reads a page as a browser does: which tags there are, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.tags.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop() == name, f"</{name}> closes another tag"

    def handle_data(self, data):
        self.text += data


def test_everything_is_on_the_page():
    read = Reader(page(made_summary.summarize()))
    assert read.open == []
    for summary in (
        "web", "1,003", "language.other", "near", "A plain page.", "Die Donau.", "de, 99 % sure",
        "pages/*.jsonl", "not JSON: 3", "personal.email", "near = true",
        "host-a", "one file was cut off", "part-0.jsonl", "1 min 13 s",
    ):  # fmt: skip
        assert summary in read.text, summary
    assert [name for name, _ in read.tags].count("figure") == 3


def test_what_is_not_there_is_left_out():
    source = {"path": "pages/*.jsonl", "revision": None, "notes": [{"kind": None, "text": "t"}]}
    recipe = {"name": "web", "source": [source], "label": {"good": None}}
    lineage = {"files": [{"name": "part-0.jsonl", "commit": None}], "parent": None}
    summary = made_summary.summarize(
        made_summary.manifest(lineage=lineage), made_summary.record(recipe=recipe)
    )
    text = Reader(page(summary)).text
    assert "files[0].name = part-0.jsonl" in text
    assert "None" not in text


def test_documents_are_shown_as_text():
    html = page(made_summary.summarize())
    read = Reader(html)
    assert "<script>alert('x')</script> & \"quotes\" \ufffd[31m\ufffd \ufffd end" in read.text
    assert "script" not in {name for name, _ in read.tags}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)


def test_nothing_is_loaded_from_elsewhere():
    read = Reader(page(made_summary.summarize()))
    attributes = [(name, value) for _, found in read.tags for name, value in found.items()]
    assert not [name for name, _ in attributes if name in ("src", "href", "srcset", "onload")]
    assert ("http-equiv", "Content-Security-Policy") in attributes
    assert not re.search(r"url\(|@import", read.text)


def test_a_dataset_without_a_record_has_a_page_too():
    summary = made_summary.summarize()
    bare = type(summary)(summary.id, summary.where, summary.manifest, summary.stages, None)
    read = Reader(page(bare))
    assert "Where documents went" in read.text
    assert "[clean.c4]\nmin_sentences = 5" in read.text
    assert "Some that were kept" not in read.text


@settings(max_examples=60, deadline=None)
@given(text=st.text(), name=st.text(min_size=1), value=st.text())
def test_no_text_breaks_out_of_its_place(text, name, value):
    dirty = made_summary.sample(name, text, columns={name: value}, detail=value, source=name)
    built = made_summary.record(
        kept=[dirty], dropped={name: [dirty]}, languages={name: 1}, changes={value: 1}, notes=[text]
    )
    clean = Reader(page(made_summary.summarize()))
    read = Reader(page(made_summary.summarize(built=built)))
    assert read.open == []
    allowed = {name for name, _ in clean.tags}
    assert {name for name, _ in read.tags} <= allowed


def test_columns_are_as_tall_as_their_counts():
    drawn = histogram([1, 0, 4], ["0", "1", "2", "3"], "things")
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="kept"', drawn)]
    assert heights[1] == 0
    assert abs(heights[2] / heights[0] - 4) < 0.01
    assert "2 to 3: 4" in drawn


def test_no_label_of_an_axis_is_near_the_last():
    for bins in range(1, 40):
        drawn = histogram([1] * bins, [str(i) for i in range(bins + 1)], "things")
        places = [float(left) for left in re.findall(r"left:([\d.]+)%", drawn)]
        assert places[0] == 0
        assert max(places) <= 75
        assert all(b - a >= 14 for a, b in pairwise(places))


@given(text=st.text(alphabet="ab \n", max_size=300))
def test_a_title_ends_with_a_word_or_says_that_it_goes_on(text):
    line = " ".join(text.split())
    shown = opening(text, 20)
    assert len(shown) <= 20
    if len(line) <= 20:
        assert shown == line
    else:
        begun = shown.removesuffix("…").rstrip()
        assert shown.endswith("…")
        assert line.startswith(begun)
        assert line[len(begun)] == " " or " " not in begun


def test_pieces_and_copies_are_told_apart():
    packed = Reader(
        page(made_summary.summarize(made_summary.manifest(documents=2905, packed=16)))
    ).text
    assert "2,905 pieces of at most 16 tokens" in packed
    assert "tokens a piece2" in packed
    assert "documents700" in packed
    assert "copies" not in packed
    copied = Reader(page(made_summary.summarize(made_summary.manifest(documents=900)))).text
    assert "With copies, the dataset holds 900." in copied
    assert "tokens a document6" in copied
    assert "piece" not in copied.replace(PAGE_CSS, "")


def test_conversations_are_shown_with_their_roles():
    chat = made_summary.sample("chat/1", "<|user|>\nHello?<|end|>\n<|assistant|>\nYes.<|end|>")
    read = Reader(page(made_summary.summarize(), [chat])).text
    assert "<|assistant|>\nYes." in read
    assert "A plain page." not in read


def test_names_break_where_they_may_and_stay_whole_as_text():
    html = page(made_summary.summarize())
    assert "language.<wbr>other" in html
    assert "@media (max-width" in html
    assert 'data-title="documents"' in html


def test_only_what_is_made_here_is_markup():
    assert tag("p", "a < b", Markup("<b>c</b>"), class_='"x"') == (
        '<p class="&quot;x&quot;">a &lt; b<b>c</b></p>'
    )
