"""Types that all of `data` shares."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.unsignedinteger]
Positions: TypeAlias = npt.NDArray[np.int64]
Content: TypeAlias = npt.NDArray[np.uint8]
# Called with the name of the work, how much is done, and the total.
Progress: TypeAlias = Callable[[str, int, int], None]
