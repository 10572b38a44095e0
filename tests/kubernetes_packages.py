"""Packages of `.kubernetes`: the client, schemas and models that `make test-kubernetes` installs.

They come last in the search: where both environments have a package, that of the tests is used.
"""

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("PENSTOCK_KUBERNETES", Path(__file__).parents[1] / ".kubernetes"))
PACKAGES = next(FOLDER.glob("lib/python3*/site-packages"), None)

needs_kubernetes = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(PACKAGES is None, reason="no validators: make test-kubernetes"),
]

if PACKAGES is not None:
    sys.path.append(str(PACKAGES))
