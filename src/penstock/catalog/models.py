"""Models: presets from 3M to 671B parameters, each checked against its published count."""

import re
from dataclasses import dataclass, fields

from penstock.catalog.fact import Fact
from penstock.catalog.shapes import ModelShape
from penstock.catalog.table import Table, packaged


@dataclass(frozen=True)
class PublishedCount:
    """A parameter count as its maker printed it."""

    params: int
    unit: int  # of the last printed digit; 1 means exact

    @classmethod
    def parse(cls, count: int | str) -> "PublishedCount":
        """Parse an exact or a printed number: `36.6B` is 36,600,000,000 with a unit of 0.1B."""
        if isinstance(count, int):
            return cls(count, 1)
        match = re.fullmatch(r"(\d+)(?:\.(\d+))?([MB])", count)
        assert match, f"not a parameter count: {count!r}"
        whole, decimals, scale = match[1], match[2] or "", {"M": 10**6, "B": 10**9}[match[3]]
        unit = scale // 10 ** len(decimals)
        return cls(int(whole + decimals) * unit, unit)

    def agrees(self, params: int) -> bool:
        """Return whether a count agrees; a printed one may be off by one in its last digit."""
        return abs(params - self.params) < self.unit


@dataclass(frozen=True, kw_only=True)
class ModelPreset(Fact):
    """A named shape with the counts it was published with."""

    title: str
    shape: ModelShape
    published: PublishedCount
    published_active: PublishedCount | None  # of a mixture of experts: parameters per token


def _load() -> list[ModelPreset]:
    import tomllib  # here: a program that never asks for a preset need not wait for it

    table = tomllib.loads(packaged("models.toml"))
    return [_preset(name, entry) for name, entry in table.items()]


def _preset(name: str, entry: dict) -> ModelPreset:
    shape = {f.name: entry.pop(f.name) for f in fields(ModelShape) if f.name in entry}
    if "full_layers" in shape:
        shape["full_layers"] = tuple(shape["full_layers"])
    params, active = entry.pop("params"), entry.pop("active", None)
    return ModelPreset(
        name=name,
        shape=ModelShape(**shape),
        published=PublishedCount.parse(params),
        published_active=PublishedCount.parse(active) if active else None,
        aliases=tuple(entry.pop("aliases", ())),
        **entry,
    )


TABLE = Table("models", _load)
all, find, names = TABLE.all, TABLE.find, TABLE.names


def preset(name: str) -> ModelShape:
    """Return the shape of a preset."""
    return find(name).shape
