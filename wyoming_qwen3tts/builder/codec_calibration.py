"""Measures the ranges that the int8 codec decoder's convolutions need.

There is no speech at build time, only weights: the float32 decoder is run over random codes. They
are seeded, so that equal checkpoints give equal bundles.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

from wyoming_qwen3tts.builder.codec_convolution import HIGH_PREFIX, LOW_PREFIX, ValueRange
from wyoming_qwen3tts.runtime.graphs import open_session
from wyoming_qwen3tts.threads import default_num_threads

_SEED: Final = 20_250_101
# Long enough for every convolution's past and most of attention's to fill; 5 s of sound.
_NUM_FRAMES: Final = 64
_FRAMES_PER_RUN: Final = 8


def measure_ranges(path: Path, num_groups: int, codebook_size: int) -> dict[str, ValueRange]:
    """Run a decoder graph with observed convolutions.

    Args:
        path: The graph.
        num_groups: Codes per frame.
        codebook_size: Codes are below this.

    Returns:
        The range of every observed convolution's input, by the name of its state.
    """
    session = open_session(path, num_threads=default_num_threads())
    outputs = [value.name for value in session.get_outputs()]
    state = _initial_state(session)
    ranges: dict[str, ValueRange] = {}
    codes = np.random.default_rng(_SEED).integers(0, codebook_size, (_NUM_FRAMES, num_groups))
    for start in range(0, _NUM_FRAMES, _FRAMES_PER_RUN):
        feeds = {"codes": codes[start : start + _FRAMES_PER_RUN], "position": np.array(start)}
        results = dict(zip(outputs, session.run(outputs, {**state, **feeds}), strict=True))
        state = {name: results[f"next_{name}"] for name in state}
        for name, low in results.items():
            if name.startswith(LOW_PREFIX):
                site = name.removeprefix(LOW_PREFIX)
                high = results[f"{HIGH_PREFIX}{site}"]
                known = ranges.get(site, ValueRange(0.0, 0.0))  # padding is zeros
                ranges[site] = known.including(float(low), float(high))
    return ranges


def _initial_state(session: Any) -> dict[str, Any]:
    return {
        value.name: np.zeros(
            [dim if isinstance(dim, int) else 0 for dim in value.shape], np.float32
        )
        for value in session.get_inputs()
        if value.name not in ("codes", "position")
    }
