"""Rules on punctuation that decide where words begin, for all characters of a batch at once.

A word is what English filters count: white space separates words, punctuation is split off from
both ends character by character, and a few characters split words in the middle, between certain
neighbours. The rules follow the tokenizer that FineWeb's filters were tuned with (spaCy's blank
English), because thresholds such as "words per document" depend on it. Most of its lists of
exceptions are left out:

- split off at the front: brackets, quotes, marks, currency, %, =, icons; at the end: the same
  without the last three, and a full stop after a lower-case letter, a digit or a mark; two or more
  dots are one word
- split in the middle: hyphens between letters, `:<>=/` before a letter, a comma between letters, a
  full stop between a lower-case and a capital letter, `+-*^` between digits, icons, dots; never in
  a URL
- contractions (n't, 's, 're, 've, 'll, 'd, 'm) and units on a number (10km) are words; `cannot`,
  `gonna` and `gotta` are two words
- a full stop stays with one letter (`a.`), with abbreviations with dots inside (`e.g.`) and with
  titles
- `and/or` is one word, and so are two marks that make a face, including `):`: the thresholds were
  tuned with them

Everything is array arithmetic over the characters of the batch that are not white space; the rules
look at punctuation only, an eighth of most text.
"""

import numpy as np
import numpy.typing as npt

from penstock.data.clean import characters as ch

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_DOT, _APOSTROPHE, _CURLY, _COMMA, _MINUS = ord("."), ord("'"), ord("’"), ord(","), ord("-")


def _codes(names: str) -> npt.NDArray[np.uint64]:
    """Encode each name of up to five letters as a number: one byte per letter, big-endian."""
    return np.array([int.from_bytes(name.encode(), "big") for name in names.split()], np.uint64)


# Written with a dot that does not end a sentence.
_TITLES = _codes(
    "Mr Mrs Ms Dr Prof Rev Gen Gov Sen Rep Adm St Mt Jr Inc Ltd Co Corp Bros vs "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
)
_UNITS = _codes(
    "km m dm cm mm ha nm yd in ft kg g mg t lb oz kmh mph hPa Pa mbar "
    "mb MB kb KB gb GB tb TB T G M K"
)
# Two words written as one: the second begins at the fourth letter.
_JOINED = ("cannot", "gonna", "gotta")
# Two marks that are one word.
_FACES = ":) :( :] :} (: [: ): ;) (; =) (= =] ]= =( =[ :* :> :/ :| =/ =| 8) ''"
_SMILEYS = np.array([ord(face[0]) << 32 | ord(face[1]) for face in _FACES.split()], np.uint64)


def find_word_starts(
    text: npt.NDArray[np.uint32], bits: npt.NDArray[np.uint16], first: Bools
) -> Bools:
    """Return whether a word begins at each character.

    `first` marks the characters after white space, and the end of the text.
    """
    out = first[:-1].copy()
    at = np.flatnonzero(bits & (ch.PEEL | ch.FRONT | ch.QUOTE | ch.ICON | ch.HYPHEN | ch.OTHER))
    if not at.size:
        out[_units(text, bits, first, first[1:])] = True
        out[_joined(text, out)] = True
        return out
    marks = _Punctuation(text, bits, first, at)
    front, back = marks.front(), marks.back()
    alone = front | back | marks.middle(front, back)
    out[at[alone]] = True
    after = at[alone] + 1
    out[after[after < len(out)]] = True
    out[at[marks.goes_on & alone]] = False
    end = first[1:].copy()  # whether a word ends here, after punctuation was split off
    tail = at[back] - 1
    end[tail[tail >= 0]] = True
    out[marks.contractions(end)] = True
    out[_units(text, bits, first, end)] = True
    out[_second_of_smiley(text, out, first, at)] = False
    out[_joined(text, out)] = True
    return out


def _units(
    text: npt.NDArray[np.uint32], bits: npt.NDArray[np.uint16], first: Bools, end: Bools
) -> Ints:
    """Return where a unit begins that is attached to its number; `end` marks ends of words."""
    at = 1 + np.flatnonzero(bits[:-1] & ch.DIGIT)
    at = at[((bits[at] & ch.ALPHA) != 0) & ~first[at]]
    code = np.zeros(len(at), np.uint64)
    going = np.ones(len(at), np.bool_)
    for forward in range(5):
        where = np.minimum(at + forward, len(text) - 1)
        code = np.where(going, (code << np.uint64(8)) | np.minimum(text[where], 0xFF), code)
        going = going & ~end[where]
    return at[~going & np.isin(code, _UNITS)]


def _joined(text: npt.NDArray[np.uint32], starts_word: Bools) -> Ints:
    """Return where the second word of `cannot` and similar words begins."""
    ends = np.append(starts_word, True)
    found = [np.empty(0, np.int64)]
    for word in _JOINED:
        size = len(word)
        room = text[: max(0, len(text) - size + 1)]
        at = np.flatnonzero((room == ord(word[0])) | (room == ord(word[0].upper())))
        for place, letter in enumerate(word[1:], 1):
            at = at[text[at + place] == ord(letter)]
        at = at[starts_word[at] & ends[at + size]]
        # White space may be between the letters: all but the first must continue the word.
        inside = np.array([ends[at + place] for place in range(1, size)]).any(axis=0)
        found.append(at[~inside] + 3)
    return np.concatenate(found)


def _second_of_smiley(
    text: npt.NDArray[np.uint32], starts_word: Bools, first: Bools, at: Ints
) -> Ints:
    """Return the second marks of pairs that are one word, unless the first mark ended a pair."""
    at = at[at > 0]
    both = starts_word[at] & starts_word[at - 1] & ~first[at] & np.append(starts_word, True)[at + 1]
    at = at[both]
    pairs = text[at - 1].astype(np.uint64) << np.uint64(32) | text[at]
    at = at[np.isin(pairs, _SMILEYS)]
    # In `):)` the first two are a pair: of overlapping pairs every other one counts.
    run = np.cumsum(np.append(True, np.diff(at) != 1)[: len(at)])
    rank = np.arange(len(at)) - np.searchsorted(run, run)
    return at[rank % 2 == 0]


class _Punctuation:
    """The characters that may split a word, with their neighbours in the same chunk."""

    def __init__(
        self, text: npt.NDArray[np.uint32], bits: npt.NDArray[np.uint16], first: Bools, at: Ints
    ) -> None:
        self.text, self.bits, self.at = text, bits, at
        self.starts_chunk, self.ends_chunk = first[at], first[at + 1]
        self.first = first
        self.own = bits[at]
        self.char = text[at]
        last = len(text) - 1
        before, after = np.maximum(at - 1, 0), np.minimum(at + 1, last)
        self.before = np.where(self.starts_chunk, 0, bits[before])
        self.after = np.where(self.ends_chunk, 0, bits[after])
        self.char_before = np.where(self.starts_chunk, 0, text[before])
        self.char_after = np.where(self.ends_chunk, 0, text[after])
        self.dot = self.char == _DOT
        self.dots = self.dot & ((self.char_before == _DOT) | (self.char_after == _DOT))
        # The later characters of `...` or `--` belong to the word before.
        self.goes_on = (self.dots & (self.char_before == _DOT)) | (
            ((self.own & ch.HYPHEN) != 0) & (self.char_before == self.char) & (self.char == _MINUS)
        )

    def _runs(self, which: Bools) -> tuple[Ints, Ints, Ints]:
        """Return runs of adjacent marks in a chunk: members, run of each, first member of each."""
        members = np.flatnonzero(which)
        where = self.at[members]
        opens = np.ones(len(members), np.bool_)
        opens[1:] = (np.diff(where) != 1) | self.starts_chunk[members[1:]]
        return members, np.cumsum(opens) - 1, np.flatnonzero(opens)

    def front(self) -> Bools:
        plus_number = (self.char == ord("+")) & ((self.after & ch.DIGIT) != 0)
        peels = ((self.own & (ch.PEEL | ch.FRONT)) != 0) & ~plus_number | self.dots
        members, run, opening = self._runs(peels)
        out = np.zeros(len(self.at), np.bool_)
        if members.size:
            out[members] = self.starts_chunk[members[opening]][run]
        return out

    def back(self) -> Bools:
        number_before = (self.before & ch.DIGIT) != 0
        after_number = ((self.own & ch.FRONT) != 0) & (self.char != ord("=")) & number_before
        peels = ((self.own & ch.PEEL) != 0) | self.dots | after_number | self._full_stop()
        members, run, opening = self._runs(peels)
        out = np.zeros(len(self.at), np.bool_)
        if members.size:
            closing = np.append(opening[1:], len(members)) - 1
            out[members] = self.ends_chunk[members[closing]][run]
        return out

    def _full_stop(self) -> Bools:
        """Return which dots end a sentence rather than an abbreviation."""
        two, four = np.maximum(self.at - 2, 0), np.maximum(self.at - 4, 0)
        single = self._single()
        inside = (self.bits[four] & (ch.ALPHA | ch.DIGIT)) != 0  # `file.h.`, not `e.g.`
        inside &= ~self.first[np.maximum(self.at - 3, 0)]
        dotted = ~single & (self.text[two] == _DOT) & ((self.before & ch.ALPHA) != 0) & ~inside
        capitals = ~single & ((self.bits[two] & ch.UPPER) != 0) & ((self.before & ch.UPPER) != 0)
        marks = np.isin(self.char_before, [ord(c) for c in "%²-+"])
        plain = (self.before & (ch.DIGIT | ch.PEEL | ch.QUOTE)) != 0
        small = ((self.before & ch.LOWER) != 0) & ~single
        return self.dot & ~dotted & (capitals | marks | plain | small) & ~self._title()

    def _single(self) -> Bools:
        """Return whether only one character comes before it in the chunk, opening marks aside."""
        one, two = np.maximum(self.at - 1, 0), np.maximum(self.at - 2, 0)
        opened = self.first[two] & ((self.bits[two] & ch.PEEL) != 0)
        return self.first[one] | opened

    def _title(self) -> Bools:
        """Return whether the letters before it are a title that is written with a dot."""
        code = np.zeros(len(self.at), np.uint64)
        going = self.dot & ~self.starts_chunk
        for back in range(1, 6):
            where = np.maximum(self.at - back, 0)
            going = going & ((self.bits[where] & ch.ALPHA) != 0)
            letter = np.minimum(self.text[where], 0xFF).astype(np.uint64)
            code = np.where(going, code | letter << np.uint64(8 * (back - 1)), code)
            going = going & ~self.first[where]
        return self.dot & np.isin(code, _TITLES)

    def middle(self, front: Bools, back: Bools) -> Bools:
        """Return which marks split a word; `front` and `back` were already split off its ends."""
        inner = np.ones(len(self.at), np.bool_)  # what follows belongs to the word
        inner[:-1] = ~back[1:] | (np.diff(self.at) != 1)
        letter_before = (self.before & ch.ALPHA) != 0
        letter_after = (self.after & ch.ALPHA) != 0
        digit_before = (self.before & ch.DIGIT) != 0
        digit_after = (self.after & ch.DIGIT) != 0
        joint = np.isin(self.char, [ord(c) for c in ":<>=/"])
        sign = np.isin(self.char, [ord(c) for c in "+-*^"])
        quote_before, quote_after = (self.before & ch.QUOTE) != 0, (self.after & ch.QUOTE) != 0
        out = joint & (letter_before | digit_before) & letter_after
        out |= sign & digit_before & (digit_after | (self.char_after == _MINUS))
        out |= (self.char == _COMMA) & letter_before & letter_after
        out |= (
            self.dot
            & (((self.before & ch.LOWER) != 0) | quote_before)
            & (((self.after & ch.UPPER) != 0) | (quote_after & inner))
        )
        out |= ((self.own & ch.ICON) != 0) | self.dots
        members, run, opening = self._runs((self.own & ch.HYPHEN) != 0)
        if members.size:
            closing = np.append(opening[1:], len(members)) - 1
            head, tail = members[opening], members[closing]
            joins = (letter_before | digit_before)[head] & letter_after[tail]
            out[members] |= joins[run]
        return out & ~self._in_url(front, back) & ~self._and_or()

    def _and_or(self) -> Bools:
        """Return which slashes are in `and/or`, which is one word."""
        out = self.char == ord("/")
        last = len(self.text) - 1
        for offset, letter in zip((-3, -2, -1, 1, 2), "andor", strict=True):
            out &= self.text[np.clip(self.at + offset, 0, last)] == ord(letter)
        before, after = np.maximum(self.at - 4, 0), np.minimum(self.at + 3, last)
        starts_word = self.first[np.maximum(self.at - 3, 0)] | ((self.bits[before] & ch.ALPHA) == 0)
        ends = self.first[np.minimum(self.at + 3, last + 1)] | ((self.bits[after] & ch.ALPHA) == 0)
        return out & starts_word & ends

    def _in_url(self, front: Bools, back: Bools) -> Bools:
        """Return which marks are in a URL or an e-mail address, ends aside."""
        slash = ord("/")
        third = self.text[np.minimum(self.at + 2, len(self.text) - 1)]
        scheme = (self.char == ord(":")) & (self.char_after == slash) & (third == slash)
        mail = (self.char == ord("@")) & (self.before != 0) & (self.after != 0)
        if not (scheme | mail).any():
            return np.zeros(len(self.at), np.bool_)
        chunk = np.searchsorted(np.flatnonzero(self.first[:-1]), self.at, "right")
        # A scheme has only letters before it; an address has no bracket or quote inside.
        opens = np.ones(len(self.at), np.bool_)
        opens[1:] = front[:-1] | (np.diff(chunk) != 0)
        inside = np.isin(self.char, [ord(c) for c in '<>()[]"|:']) & ~front & ~back
        mails = np.setdiff1d(chunk[mail], chunk[inside])
        return np.isin(chunk, np.concatenate([chunk[scheme & opens], mails]))

    def contractions(self, end: Bools) -> Ints:
        """Return where n't, 's and similar contractions begin; `end` marks ends of words."""
        which = ((self.char == _APOSTROPHE) | (self.char == _CURLY)) & (self.before & ch.ALPHA != 0)
        at = self.at[which]
        if not at.size:
            return at
        last = len(self.text) - 1
        small = self.text | 0x20
        one, two = small[np.minimum(at + 1, last)], small[np.minimum(at + 2, last)]
        short = end[np.minimum(at + 1, last)] & (at < last)
        longer = ~short & ~self.first[np.minimum(at + 2, last)] & (at + 2 <= last)
        longer &= end[np.minimum(at + 2, last)]
        single = np.isin(one, [ord(c) for c in "smd"]) & short
        pairs = [one * 256 + two == ord(p[0]) * 256 + ord(p[1]) for p in ("re", "ve", "ll")]
        double = (pairs[0] | pairs[1] | pairs[2]) & longer
        n = at - 1
        negated = short & (one == ord("t")) & (small[n] == ord("n")) & ~self.first[n]
        return np.concatenate([at[(single | double) & ~self.first[at + 1]], n[negated]])
