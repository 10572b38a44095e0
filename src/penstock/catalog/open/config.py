"""Typed reading of a `config.json` from others; every error names its field."""

import math
from collections.abc import Sequence
from typing import Any

from penstock.catalog.shapes import LARGEST
from penstock.errors import PenstockError
from penstock.untrusted import preview

_BOUNDS = {
    "num_hidden_layers": LARGEST["layers"],
    "hidden_size": LARGEST["hidden"],
    "num_attention_heads": LARGEST["heads"],
    "num_key_value_heads": LARGEST["kv_heads"],
    "intermediate_size": LARGEST["ffn"],
    "moe_intermediate_size": LARGEST["expert_ffn"],
    "vocab_size": LARGEST["vocab"],
    "head_dim": LARGEST["head_dim"],
}  # other fields are positions or counts of experts: the limit below
_LARGEST_WHOLE = LARGEST["context"]
_LARGEST_NUMBER = 1e18


class Unsupported(PenstockError):
    """A config of an open model that Penstock does not train."""

    def __init__(self, what: str) -> None:
        super().__init__(f"config.json: {what.strip()}")


class HubConfig:
    """The fields of a config. A missing or null field has its default, or is an error."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def positive(self, name: str) -> bool:
        """Return whether the field is there and neither null nor zero."""
        return self.has(name) and self._values[name] != 0

    def count(self, name: str, default: int | None = None, nothing: bool = False) -> int:
        """Return a whole number above 0; with `nothing`, an explicit null is 0."""
        if nothing and name in self._values and self._values[name] is None:
            return 0
        if default == 0 and not self.has(name):
            return 0
        value = self.whole(name, default)
        if value < 1:
            raise Unsupported(f"{name} = {value} is not a number above 0")
        return value

    def whole(self, name: str, default: int | None = None) -> int:
        value = self._found(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise Unsupported(f"{name} = {preview(value)} is not a whole number")
        if value > (most := _BOUNDS.get(name, _LARGEST_WHOLE)):
            what = f"is more than any model has; at most {most:,} is read"
            raise Unsupported(f"{name} = {preview(value)} {what}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._found(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise Unsupported(f"{name} = {preview(value)} is not a number above 0")
        if value > _LARGEST_NUMBER or not math.isfinite(value):
            raise Unsupported(f"{name} = {preview(value)} is more than {_LARGEST_NUMBER:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._found(name, default)
        if not isinstance(value, bool):
            raise Unsupported(f"{name} = {preview(value)} is neither true nor false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._found(name, default)
        return value[:80] if isinstance(value, str) else preview(value)

    def list(self, name: str) -> list[Any]:
        value = self._found(name, [])
        if not isinstance(value, list):
            raise Unsupported(f"{name} = {preview(value)} is not a list")
        if len(value) > LARGEST["layers"]:
            raise Unsupported(f"{name} has {len(value)} values, more than any model has layers")
        return value

    def wholes(self, name: str) -> Sequence[int]:
        """Return a list of whole numbers."""
        value = self.list(name)
        for item in value:
            if not isinstance(item, int) or isinstance(item, bool):
                raise Unsupported(f"{name} holds {preview(item)}, which is not a whole number")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers above 0."""
        table = HubConfig(dict(enumerate(self.list(name))))  # type: ignore[arg-type]
        try:
            return tuple(table.number(place) for place in range(len(self.list(name))))  # type: ignore[arg-type]
        except Unsupported:
            raise Unsupported(f"{name} is not a list of numbers above 0") from None

    def table(self, name: str) -> "HubConfig":
        value = self._found(name, {})
        if not isinstance(value, dict) or any(isinstance(v, dict) for v in value.values()):
            raise Unsupported(f"{name} is not one table for all layers")
        return HubConfig(value)

    def layered(self, name: str) -> "HubConfig":
        """Return a table that has one table for each kind of layer."""
        value = self._found(name, {})
        if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
            raise Unsupported(f"{name} is not a table for each kind of layer")
        return HubConfig(value)

    def merged(self, other: "HubConfig") -> "HubConfig":
        """Return both tables as one; fields of `other` win."""
        return HubConfig({**self._values, **other._values})

    def require(self, name: str, works: object, default: object) -> None:
        """Refuse any value but the one that works."""
        value = self._found(name, default)
        if value != works:
            raise Unsupported(f"{name} = {preview(value)} is not built; only {works!r} is")

    def _found(self, name: str, default: object) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise Unsupported(f"{name} is missing")
        return value
