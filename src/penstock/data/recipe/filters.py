"""`[clean.gopher_repetition]` and the other filter tables: the thresholds of `clean/config.py`.

Every default is the published one; `clean/config.py` holds them and names the papers.
"""

from pydantic import Field

from penstock.data.clean.config import C4, FineWeb, GopherQuality, GopherRepetition
from penstock.data.recipe.fields import BoundOrOff, Count, CountOrOff, WordShares
from penstock.run.schema.section import Flag, Switch, Text


class GopherRepetitionSection(Switch):
    """Drops documents that repeat themselves (Rae et al. 2021, appendix A.1.1, table A1)."""

    duplicate_paragraphs: BoundOrOff = Field(
        GopherRepetition.duplicate_paragraphs,
        description="Most paragraphs that were there before, share of all.",
    )
    duplicate_paragraph_characters: BoundOrOff = Field(
        GopherRepetition.duplicate_paragraph_characters,
        description="Most characters in such paragraphs, share of all.",
    )
    duplicate_lines: BoundOrOff = Field(
        GopherRepetition.duplicate_lines,
        description="Most lines that were there before, share of all.",
    )
    duplicate_line_characters: BoundOrOff = Field(
        GopherRepetition.duplicate_line_characters,
        description="Most characters in such lines, share of all.",
    )
    top: WordShares = Field(
        GopherRepetition.top,
        description="Most characters in the most frequent run of so many words, share of all.",
    )
    duplicate: WordShares = Field(
        GopherRepetition.duplicate,
        description="Most characters in runs of so many words that were there before.",
    )


class GopherQualitySection(Switch):
    """Drops what does not read like prose (Rae et al. 2021, appendix A.1.1)."""

    min_words: CountOrOff = Field(
        GopherQuality.min_words, description="Words of symbols alone do not count."
    )
    max_words: CountOrOff = Field(GopherQuality.max_words, description="Most words.")
    min_word_characters: BoundOrOff = Field(
        GopherQuality.min_word_characters, description="Least mean length of a word, characters."
    )
    max_word_characters: BoundOrOff = Field(
        GopherQuality.max_word_characters, description="Most mean length of a word, characters."
    )
    max_symbols_per_word: BoundOrOff = Field(
        GopherQuality.max_symbols_per_word, description="Most `#`, and most ellipses, per word."
    )
    max_bullet_lines: BoundOrOff = Field(
        GopherQuality.max_bullet_lines, description="Most lines that start with a bullet, share."
    )
    max_ellipsis_lines: BoundOrOff = Field(
        GopherQuality.max_ellipsis_lines, description="Most lines that end in an ellipsis, share."
    )
    min_alphabetic_words: BoundOrOff = Field(
        GopherQuality.min_alphabetic_words, description="Least words with a letter, share."
    )
    min_stop_words: CountOrOff = Field(
        GopherQuality.min_stop_words, description="Least different stop words."
    )
    stop_words: tuple[Text, ...] = Field(
        GopherQuality.stop_words, description="The words counted by `min_stop_words`."
    )


class C4Section(Switch):
    """Removes lines, then drops what is left of bad documents (Raffel et al. 2020, section 2.2)."""

    terminal_punctuation: Flag = Field(
        C4.terminal_punctuation,
        description="Keep only lines that end in a mark of punctuation; `false` in preset `web`.",
    )
    min_line_words: CountOrOff = Field(C4.min_line_words, description="Least words of a line.")
    max_word_characters: CountOrOff = Field(
        C4.max_word_characters, description="Lines with a longer word are removed, characters."
    )
    javascript: Flag = Field(C4.javascript, description="Remove lines with the word.")
    notices: Flag = Field(
        C4.notices, description="Remove lines on cookies, terms of use and privacy policy."
    )
    citations: Flag = Field(C4.citations, description="Remove [1], [edit], [citation needed].")
    lorem_ipsum: Flag = Field(C4.lorem_ipsum, description="Drop documents with it.")
    curly_bracket: Flag = Field(C4.curly_bracket, description="Drop documents with one.")
    min_sentences: CountOrOff = Field(C4.min_sentences, description="Least sentences.")


class FineWebSection(Switch):
    """Drops lists, menus and broken lines (Penedo et al. 2024, section 3.6)."""

    min_punctuated_lines: BoundOrOff = Field(
        FineWeb.min_punctuated_lines,
        description="Least lines that end in a mark of punctuation, share.",
    )
    max_short_lines: BoundOrOff = Field(
        FineWeb.max_short_lines, description="Most short lines, share."
    )
    short_line_characters: Count = Field(
        FineWeb.short_line_characters, description="Up to which a line is short, characters."
    )
    max_duplicate_characters: BoundOrOff = Field(
        FineWeb.max_duplicate_characters,
        description="Most characters in lines that were there before, share.",
    )
    max_lines_per_word: BoundOrOff = Field(
        FineWeb.max_lines_per_word, description="Most line breaks per word."
    )
