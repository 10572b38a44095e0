"""Packages of the `data` extra, imported when first needed."""

import importlib
from types import ModuleType

from penstock.errors import PenstockError


def extra(module: str, purpose: str) -> ModuleType:
    """Import a module of an optional package; raises PenstockError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise PenstockError(
            f"{purpose} needs {package}, which cannot be imported ({error}). "
            "Install it where Penstock is: pip install 'penstock[data]' (in a clone, pip install "
            "-c constraints.txt '.[data]')"
        ) from error
