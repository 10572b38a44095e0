"""A finding of the doctor: what was checked, on which nodes, what is wrong and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """The result of one check. A bad one names its nodes; a good one may be about all."""

    check: str
    level: Level
    words: str
    nodes: tuple[str, ...] = ()
    fix: str = ""
    spoils: bool = True
    """Whether a run should do without these nodes, or can at least not start on them."""

    def __str__(self) -> str:
        named = f"{', '.join(self.nodes)}: " if self.nodes else ""
        return f"{named}{self.words}{f'; {self.fix}' if self.fix else ''}"


def good(check: str, words: str) -> Finding:
    return Finding(check, "ok", words)


def note(check: str, words: str, nodes: Iterable[str] = (), fix: str = "") -> Finding:
    return Finding(check, "note", words, tuple(nodes), fix, spoils=False)


def bad(check: str, nodes: Iterable[str], words: str, fix: str, spoils: bool = True) -> Finding:
    return Finding(check, "bad", words, tuple(nodes), fix, spoils)


@dataclass
class Examination:
    """Everything that the doctor found."""

    nodes: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By check and node: what was read."""
    took_s: float = 0.0

    def add(self, *found: Finding) -> None:
        self.findings += found

    @property
    def bad(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "bad"]

    @property
    def ok(self) -> bool:
        return not self.bad

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """The nodes that a run should do without."""
        named = [node for finding in self.bad if finding.spoils for node in finding.nodes]
        return tuple(dict.fromkeys(named))

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "nodes": list(self.nodes),
            "bad_nodes": list(self.bad_nodes),
            "took_s": round(self.took_s, 1),
            "findings": [
                {
                    "check": one.check,
                    "level": one.level,
                    "nodes": list(one.nodes),
                    "words": one.words,
                    "fix": one.fix,
                }
                for one in self.findings
            ],
            "facts": self.facts,
        }
