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

    def count(self, name: str, default: int | None = None, nothing: bool = False) -> int:
        """Return a whole number above 0; with `nothing`, an explicit null is 0."""
        if nothing and name in self._values and self._values[name] is None:
            return 0
        if default == 0 and not self.has(name):
            return 0
        found = self.whole(name, default)
        if found < 1:
            raise Unsupported(f"{name} = {found} is not a number above 0")
        return found

    def whole(self, name: str, default: int | None = None) -> int:
        found = self._found(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise Unsupported(f"{name} = {preview(found)} is not a whole number")
        if found > (most := _BOUNDS.get(name, _LARGEST_WHOLE)):
            what = f"is more than any model has; at most {most:,} is read"
            raise Unsupported(f"{name} = {preview(found)} {what}")
        return found

    def number(self, name: str, default: float | None = None) -> float:
        found = self._found(name, default)
        if not isinstance(found, int | float) or isinstance(found, bool) or not found > 0:
            raise Unsupported(f"{name} = {preview(found)} is not a number above 0")
        if found > _LARGEST_NUMBER or not math.isfinite(found):
            raise Unsupported(f"{name} = {preview(found)} is more than {_LARGEST_NUMBER:g}")
        return float(found)

    def flag(self, name: str, default: bool) -> bool:
        found = self._found(name, default)
        if not isinstance(found, bool):
            raise Unsupported(f"{name} = {preview(found)} is neither true nor false")
        return found

    def text(self, name: str, default: str) -> str:
        found = self._found(name, default)
        return found[:80] if isinstance(found, str) else preview(found)

    def list(self, name: str) -> list[Any]:
        found = self._found(name, [])
        if not isinstance(found, list):
            raise Unsupported(f"{name} = {preview(found)} is not a list")
        if len(found) > LARGEST["layers"]:
            raise Unsupported(f"{name} has {len(found)} values, more than any model has layers")
        return found

    def wholes(self, name: str) -> Sequence[int]:
        """Return a list of whole numbers."""
        found = self.list(name)
        for one in found:
            if not isinstance(one, int) or isinstance(one, bool):
                raise Unsupported(f"{name} holds {preview(one)}, which is not a whole number")
        return found

    def table(self, name: str) -> "HubConfig":
        found = self._found(name, {})
        if not isinstance(found, dict) or any(isinstance(v, dict) for v in found.values()):
            raise Unsupported(f"{name} is not one table for all layers")
        return HubConfig(found)

    def merged(self, other: "HubConfig") -> "HubConfig":
        """Return both tables as one; fields of `other` win."""
        return HubConfig({**self._values, **other._values})

    def require(self, name: str, works: object, default: object) -> None:
        """Refuse any value but the one that works."""
        found = self._found(name, default)
        if found != works:
            raise Unsupported(f"{name} = {preview(found)} is not built; only {works!r} is")

    def _found(self, name: str, default: object) -> Any:
        found = self._values.get(name)
        if found is None:
            found = default
        if found is None:
            raise Unsupported(f"{name} is missing")
        return found
