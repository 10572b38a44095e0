"""The weights of a module of transformers, found in the files of a model by the module's names.

Files may leave out the prefix of the inner model (`h.0…` for `transformer.h.0…`). Tensors that
transformers would rename or fuse on loading are refused: one in the wrong place trains, and only
the result is bad.
"""

import re
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from penstock.catalog.open.headers import read_headers
from penstock.errors import PenstockError
from penstock.model.initialize import copy_to_shard
from penstock.model.nf4 import quantize

_SHOWN = 6


class ModuleWeights:
    """Weights of a folder by the names of a module that has no adapters yet."""

    def __init__(self, folder: Path, model: nn.Module) -> None:
        self.folder = folder
        self._entries = read_headers(folder)
        self._open: dict[Path, Any] = {}
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        wanted = {name: tuple(t.shape) for name, t in model.state_dict().items()}
        params = dict(model.named_parameters(remove_duplicate=False))
        tied: dict[int, list[str]] = {}
        for name, param in params.items():
            tied.setdefault(id(param), []).append(name)
        own = self._own_names(model, wanted.keys(), prefix)
        self.stored: dict[str, str] = {}  # our name → the name in the files
        for name in wanted:
            same = tied.get(id(params.get(name)), [name])
            if found := [own[one] for one in same if one in own]:
                self.stored[name] = found[0]
        ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
        self._refuse(params, wanted, ignored)

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def read(self, name: str) -> Tensor:
        """Return a whole tensor, in the type it is stored in."""
        stored = self.stored[name]
        file = self._entries[stored].file
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt", device="cpu")
        return self._open[file].get_tensor(stored)

    def _own_names(self, model: nn.Module, wanted: Set[str], prefix: str) -> dict[str, str]:
        """Return the stored name of each tensor of the module that the files have."""
        found: dict[str, str] = {}
        for stored in self._entries:
            name = stored
            for renaming in getattr(model, "stored_renamings", ()):
                name, _ = renaming.rename_source_key(name)
            for one in (name, f"{prefix}{name}", name.removeprefix(prefix)):
                if one in wanted:
                    found.setdefault(one, stored)
                    break
        return found

    def _refuse(
        self,
        params: Mapping[str, Tensor],
        wanted: Mapping[str, tuple[int, ...]],
        ignored: Any,
    ) -> None:
        problems = [f"{n} is missing" for n in params if n not in self.stored]
        for name, stored in self.stored.items():
            if self._entries[stored].shape != wanted[name]:
                problems.append(f"{stored} is {self._entries[stored].shape}, not {wanted[name]}")
        used = set(self.stored.values())
        for name in sorted(self._entries.keys() - used):
            harmless = name.endswith(("rotary_emb.inv_freq", ".masked_bias", ".attn.bias"))
            if not harmless and not any(re.search(one, name) for one in ignored):
                problems.append(f"{name} has no place in the module")
        if problems:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise PenstockError(
                f"{self.folder}: its tensors are not those of its module in transformers: "
                f"{'; '.join(problems[:_SHOWN])}{more}. Download the model again. Files whose "
                "tensors transformers renames or joins when it loads them (older names, experts "
                "stored one by one) are not read"
            )


def read_stored(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a folder's files, one at a time, under their stored names."""
    by_file: dict[Path, list[str]] = {}
    for name, entry in read_headers(folder).items():
        by_file.setdefault(entry.file, []).append(name)
    for file, names in by_file.items():
        with safe_open(file, framework="pt", device="cpu") as held:
            for name in names:
                yield name, held.get_tensor(name)


@torch.no_grad()
def load_module_weights(
    named: Mapping[str, Tensor], weights: ModuleWeights, device: torch.device
) -> None:
    """Copy each parameter and stored buffer from the files; matrices of bytes are quantised.

    Every rank reads one tensor at a time and keeps its part: nothing is sent. Buffers that no file
    has keep the values that the module computed.
    """
    for name, tensor in named.items():
        if name not in weights:
            continue
        whole = weights.read(name).to(device)
        if tensor.dtype == torch.uint8 and whole.dtype != torch.uint8:
            whole = quantize(whole)
        copy_to_shard(tensor, whole.to(tensor.dtype))
