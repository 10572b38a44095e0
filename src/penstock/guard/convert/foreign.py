"""Folders that torch's `dcp.save` wrote in another program.

A pickle describes their content, and unpickling runs whatever its writer put there. So they are
read only if the user says that the writer is trusted.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from penstock.errors import PenstockError
from penstock.guard.convert.writers import TensorInfo

DESCRIPTION = ".metadata"


def is_foreign_checkpoint(folder: Path) -> bool:
    """Return whether a folder holds torch's own description."""
    return (folder / DESCRIPTION).is_file()


class ForeignCheckpoint:
    """The tensors of a folder that another program wrote."""

    def __init__(self, folder: Path, trust: bool) -> None:
        if not trust:
            raise PenstockError(
                f"{folder}: a checkpoint that another program wrote. It is described by a pickle, "
                "which can run any code when it is read: give --trust if you trust its writer"
            )
        self.folder = folder
        found = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        self._tensors = {n: m for n, m in found.items() if isinstance(m, TensorStorageMetadata)}
        self.left_out = sorted(set(found) - set(self._tensors))  # objects, which are pickles too

    @property
    def about(self) -> dict[str, Any]:
        return {"from": str(self.folder)}

    def tensors(self) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(one.properties.dtype, tuple(one.size))
            for name, one in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        one = self._tensors[name]
        made = torch.empty(one.size, dtype=one.properties.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about its own internals
            reader = dcp.FileSystemReader(self.folder)
            dcp.load({name: made}, storage_reader=reader, no_dist=True)
        return made
