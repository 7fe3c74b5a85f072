"""Array aliases and the shape notation of the project.

Shapes in docstrings use these letters: B lanes, T positions, F frames, G code groups, D width,
H heads, K head width, C codebook entries, S samples. ``(F, G)`` reads "frames by groups".
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32Array: TypeAlias = NDArray[np.float32]
Int64Array: TypeAlias = NDArray[np.int64]
Int32Array: TypeAlias = NDArray[np.int32]
AnyArray: TypeAlias = NDArray[Any]
