"""The codec decoder's random weights, scaled so that errors act as in a trained decoder.

A random residual unit changes its input as much as a random unit can; a trained one adds a little.
Eight-bit noise of the first kind is amplified by the snakes of every later unit (28 dB of signal to
noise in place of 42), so the quantised decoder is compared on attenuated weights. Speed does not
depend on the values.
"""

import re
from collections.abc import Sequence
from typing import Final

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.builder.checkpoint import TensorFile

# Standard deviations of the outputs, for inputs of 1: both convolutions of a residual unit .35,
# everything that changes the width .7.
_GAINS: Final = {
    r"decoder\.decoder\.0\.conv\.weight": 0.7,
    r"decoder\.decoder\.\d+\.block\.1\.conv\.weight": 0.7,
    r"decoder\.decoder\.\d+\.block\.\d+\.conv1\.conv\.weight": 0.35,
    r"decoder\.decoder\.\d+\.block\.\d+\.conv2\.conv\.weight": 1.4,  # they are at .25 already
}


class ConditionedTensors(TensorFile):
    """Tensors of a random codec; those of the convolutional part are attenuated."""

    def read(self, name: str, shape: Sequence[int]) -> Float32Array:
        """Return a tensor, times its gain.

        Raises:
            CheckpointError: There is no such tensor, or it has another shape.
        """
        values = super().read(name, shape)
        for pattern, gain in _GAINS.items():
            if re.fullmatch(pattern, name):
                values *= gain
        return values
