"""Suggestions: the one place that guesses which name a user meant.

A wrong guess costs more than none. Three readings are tried, by meaning before letters: another
word for the same thing, a part of a longer name, and a typing error. Numbers carry meaning: "fp16"
is no typing error of "fp64", and "A100" none of "A6000".
"""

import re
from collections.abc import Iterable

# Other words for the same thing, or for what comes nearest to it here.
MEANS = {
    "adam": "adamw",
    "bfloat16": "bf16",
    "double": "fp64",
    "eng": "en",
    "english": "en",
    "float": "fp32",
    "float16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "fp16": "bf16",
    "gpu": "cuda",
    "half": "bf16",
    "k8s": "kubernetes",
    "skypilot": "sky",
}
LEAST_PART = 3  # letters of a part of a name that still mean something


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` must have meant, or None."""
    names = list(dict.fromkeys(known))
    asked = _folded(name)
    for reading in (_same, _synonym, _part, _slip):
        if found := reading(asked, names):
            return found
    return None


def nearest_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names that are written most like `name`, for a choice rather than a guess.

    Names of which half the letters differ are left out.
    """
    asked = _folded(name)
    found = []
    for place, key in enumerate(dict.fromkeys(known)):
        steps = _distance(asked, _folded(key))
        if 2 * steps < max(len(asked), len(_folded(key))):
            found.append((steps, place, key))
    return [key for _, _, key in sorted(found)[:most]]


def _same(asked: str, names: list[str]) -> str | None:
    return next((name for name in names if _folded(name) == asked), None)


def _synonym(asked: str, names: list[str]) -> str | None:
    return MEANS.get(asked) if MEANS.get(asked) in names else None


def _part(asked: str, names: list[str]) -> str | None:
    """Find a name that contains everything that was asked for, and as little more as possible."""
    if len(asked) < LEAST_PART:
        return None
    words = _words(asked)
    longer = [
        name for name in names if words <= _words(_folded(name)) or _begins(_folded(name), asked)
    ]
    shorter = [
        name for name in names if len(_folded(name)) >= LEAST_PART and _begins(asked, _folded(name))
    ]
    near = [name for name in longer if len(_folded(name)) <= 4 * len(asked)]
    return min(near, key=len) if near else max(shorter, key=len, default=None)


def _begins(whole: str, part: str) -> bool:
    """Return whether `whole` begins with `part`, which does not end inside a number."""
    rest = whole[len(part) :]
    return whole.startswith(part) and not (part[-1:].isdigit() and rest[:1].isdigit())


def _slip(asked: str, names: list[str]) -> str | None:
    """Find a name with the same numbers and a few letters that differ."""
    best: tuple[int, int, str] | None = None
    for place, name in enumerate(names):
        folded = _folded(name)
        if re.findall(r"\d+", asked) != re.findall(r"\d+", folded):
            continue
        allowed = (min(len(asked), len(folded)) + 1) // 4
        if asked[:1] != folded[:1]:
            allowed = min(allowed, 1)  # people seldom miss the first letter
        steps = _distance(asked, folded)
        if steps <= allowed and (best is None or steps < best[0]):
            best = (steps, place, name)
    return best[2] if best else None


def _folded(name: str) -> str:
    """Return a name in small letters; punctuation becomes blanks, an O in a number becomes a
    zero."""
    return re.sub(r"(?<=\d)o", "0", re.sub(r"[\W_]+", " ", name.casefold()).strip())


def _words(folded: str) -> set[str]:
    """Split letters and numbers: "a100 40gb" is a, 100, 40 and gb."""
    return set(re.findall(r"\d+|[^\W\d_]+", folded))


def _distance(one: str, other: str) -> int:
    """Count letters to add, drop, change or swap with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        last, before, row = before, row, [i]
        for j, b in enumerate(other, start=1):
            steps = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                steps = min(steps, last[j - 2] + 1)
            row.append(steps)
    return row[-1]
