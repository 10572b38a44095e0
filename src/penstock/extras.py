"""Packages of extras, imported when first needed."""

import importlib
from types import ModuleType

from penstock.errors import PenstockError


def extra(module: str, purpose: str, name: str = "data") -> ModuleType:
    """Import a module of the extra `name`; raises PenstockError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise PenstockError(
            f"{purpose} needs {package}, which cannot be imported ({error}). "
            f"Install it where Penstock is: pip install 'penstock[{name}]' (in a clone, pip "
            f"install -c constraints.txt '.[{name}]')"
        ) from error
