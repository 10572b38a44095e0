"""Thresholds of every filter, with the publications they come from.

A bound of None switches off its rule; a filter of None in `Filters` switches off the whole filter.
Filters apply in the order of `Filters`, and their rules in the order of `rules`. The first broken
rule is the reason for dropping a document. FineWeb was made in this order.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FilterRule:
    """A bound on one measure: a document below a least, or above a most, is dropped as `name`."""

    name: str
    measure: str
    kind: Literal["least", "most"]
    bound: float | None


@dataclass(frozen=True)
class GopherRepetition:
    """Rae et al. 2021, "Scaling Language Models" (arXiv 2112.11446), appendix A.1.1, table A1."""

    duplicate_paragraphs: float | None = 0.30  # of all paragraphs
    duplicate_paragraph_characters: float | None = 0.20  # of all characters, as all below
    duplicate_lines: float | None = 0.30  # of all lines
    duplicate_line_characters: float | None = 0.20
    # (n, share): the most frequent n-gram
    top: tuple[tuple[int, float], ...] = ((2, 0.20), (3, 0.18), (4, 0.16))
    # (n, share): all n-grams that occurred before in the document
    duplicate: tuple[tuple[int, float], ...] = (
        (5, 0.15),
        (6, 0.14),
        (7, 0.13),
        (8, 0.12),
        (9, 0.11),
        (10, 0.10),
    )

    def rules(self) -> tuple[FilterRule, ...]:
        return (
            FilterRule("empty", "characters", "least", 1),
            _most("duplicate_paragraphs", self.duplicate_paragraphs),
            _most("duplicate_paragraph_characters", self.duplicate_paragraph_characters),
            _most("duplicate_lines", self.duplicate_lines),
            _most("duplicate_line_characters", self.duplicate_line_characters),
            *(_most(f"top_{n}_words", share) for n, share in self.top),
            *(_most(f"duplicate_{n}_words", share) for n, share in self.duplicate),
        )


@dataclass(frozen=True)
class GopherQuality:
    """Rae et al. 2021 (arXiv 2112.11446), appendix A.1.1, "Quality filtering"."""

    min_words: int | None = 50  # words of symbols alone do not count
    max_words: int | None = 100_000
    min_word_characters: float | None = 3  # mean length
    max_word_characters: float | None = 10
    max_symbols_per_word: float | None = 0.1  # `#`, and ellipses
    max_bullet_lines: float | None = 0.9
    max_ellipsis_lines: float | None = 0.3
    min_alphabetic_words: float | None = 0.8
    min_stop_words: int | None = 2  # different ones
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")

    def rules(self) -> tuple[FilterRule, ...]:
        return (
            FilterRule("few_words", "words", "least", self.min_words),
            FilterRule("many_words", "words", "most", self.max_words),
            FilterRule("short_words", "word_characters", "least", self.min_word_characters),
            FilterRule("long_words", "word_characters", "most", self.max_word_characters),
            FilterRule("hashes", "hashes_per_word", "most", self.max_symbols_per_word),
            FilterRule("ellipses", "ellipses_per_word", "most", self.max_symbols_per_word),
            _most("bullet_lines", self.max_bullet_lines),
            _most("ellipsis_lines", self.max_ellipsis_lines),
            FilterRule(
                "few_alphabetic_words", "alphabetic_words", "least", self.min_alphabetic_words
            ),
            FilterRule("few_stop_words", "stop_words", "least", self.min_stop_words),
        )


@dataclass(frozen=True)
class C4:
    """Raffel et al. 2020, "Exploring the Limits of Transfer Learning" (JMLR 21:140), section 2.2.

    It removes lines first; later filters see the lines that are left. The limit on a word's length
    and the rule on notices of cookies and terms come from the code that made C4, not from the
    paper.
    """

    terminal_punctuation: bool = True  # keep only lines that end in . ? ! " '; FineWeb: off
    min_line_words: int | None = 3
    max_word_characters: int | None = 1000
    javascript: bool = True  # remove lines with the word
    notices: bool = True  # remove lines on cookies, terms of use and privacy policy
    citations: bool = True  # remove [1], [edit], [citation needed] from lines
    lorem_ipsum: bool = True  # drop documents with it
    curly_bracket: bool = True  # drop documents with it
    min_sentences: int | None = 5

    def rules(self) -> tuple[FilterRule, ...]:
        return (
            FilterRule("lorem_ipsum", "lorem_ipsum_lines", "most", 0 if self.lorem_ipsum else None),
            FilterRule(
                "curly_bracket", "curly_bracket_lines", "most", 0 if self.curly_bracket else None
            ),
            FilterRule("few_sentences", "sentences", "least", self.min_sentences),
        )


@dataclass(frozen=True)
class FineWeb:
    """Penedo et al. 2024, "The FineWeb Datasets" (arXiv 2406.17557), section 3.6.

    The bounds are those of the pipeline that made the dataset (datatrove). Its code differs from
    the paper in two points: the paper has 0.1 for duplicate_characters and no max_lines_per_word.
    """

    min_punctuated_lines: float | None = 0.12
    max_short_lines: float | None = 0.67
    short_line_characters: int = 30
    max_duplicate_characters: float | None = 0.01
    max_lines_per_word: float | None = 0.3

    def rules(self) -> tuple[FilterRule, ...]:
        return (
            FilterRule("empty", "lines", "least", 1),
            FilterRule(
                "few_punctuated_lines", "punctuated_lines", "least", self.min_punctuated_lines
            ),
            _most("short_lines", self.max_short_lines),
            _most("duplicate_characters", self.max_duplicate_characters),
            FilterRule("many_lines", "lines_per_word", "most", self.max_lines_per_word),
        )


@dataclass(frozen=True)
class Filters:
    """The filters to apply; None switches one off."""

    gopher_repetition: GopherRepetition | None = GopherRepetition()
    gopher_quality: GopherQuality | None = GopherQuality()
    c4: C4 | None = C4()
    fineweb: FineWeb | None = FineWeb()

    def rules(self) -> tuple[FilterRule, ...]:
        """Return all rules in order, with names and measures as `filter.rule`."""
        parts = {
            "gopher_repetition": self.gopher_repetition,
            "gopher_quality": self.gopher_quality,
            "c4": self.c4,
            "fineweb": self.fineweb,
        }
        return tuple(
            FilterRule(f"{name}.{rule.name}", f"{name}.{rule.measure}", rule.kind, rule.bound)
            for name, part in parts.items()
            if part is not None
            for rule in part.rules()
        )


def _most(name: str, bound: float | None) -> FilterRule:
    return FilterRule(name, name, "most", bound)
