r"""Rewrite a tokenizer's patterns so that \s means the same to PCRE2 and to `tokenizers`.

PCRE2 counts U+180E, the Mongolian vowel separator, as white space. Unicode has not since 2013, and
neither does the regex engine of `tokenizers`. With all characters spelled out, both agree.
"""

import copy
import re

BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_IN_LINE = BLANKS.replace("\n", "").replace("\r", "")
# An escaped character, the one class with \S that is common, or any single character.
_PARTS = re.compile(r"\[\^\\S\\r\\n\]|\\.|.", re.DOTALL)


def spell_out_white_space(config: dict[str, object]) -> dict[str, object]:
    """Return a copy of a tokenizer.json whose patterns list each white space character."""
    config = copy.deepcopy(config)
    stage = config.get("pre_tokenizer")
    stages = [stage]
    if isinstance(stage, dict) and isinstance(stage.get("pretokenizers"), list):
        stages = stage["pretokenizers"]
    for one in stages:
        pattern = one.get("pattern") if isinstance(one, dict) else None
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            pattern["Regex"] = spelled_out(pattern["Regex"])
    return config


def spelled_out(pattern: str) -> str:
    r"""Return `pattern` without \s and \S; unchanged if \S is in a class with other characters."""
    out = []
    depth = 0  # of brackets
    for part in _PARTS.findall(pattern):
        if part == r"[^\S\r\n]":
            out.append(f"[{_IN_LINE}]")
            continue
        if part == r"\S" and depth:
            return pattern
        if part == r"\s":
            out.append(BLANKS if depth else f"[{BLANKS}]")
        elif part == r"\S":
            out.append(f"[^{BLANKS}]")
        else:
            depth = max(0, depth + (part == "[") - (part == "]"))
            out.append(part)
    return "".join(out)
