"""Runs the speaker encoder graph: a reference clip to an x-vector."""

from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.runtime.session import check_graph_io

MIN_SAMPLES: Final = 1280
"""Five mel frames: what the widest reflecting convolution needs."""


class OnnxSpeakerEncoder:
    """The speaker encoder of one Base bundle; the mel front end is part of the graph."""

    def __init__(self, session: ort.InferenceSession, path: Path) -> None:
        """Wrap the session of ``speaker_encoder.onnx``.

        Raises:
            GraphInterfaceError: The graph lacks an input or output.
        """
        check_graph_io(session, path, inputs=["samples"], outputs=["x_vector"])
        self._session = session

    def embed(self, samples: Float32Array) -> Float32Array:
        """Return the x-vector (D,) of mono samples (S,) at 24 kHz.

        Raises:
            VoiceError: There are fewer than ``MIN_SAMPLES`` samples.
        """
        if len(samples) < MIN_SAMPLES:
            raise VoiceError(
                f"The reference clip has {len(samples)} samples, but the speaker encoder needs "
                f"at least {MIN_SAMPLES}; record a few seconds of speech."
            )
        x_vector: Float32Array
        (x_vector,) = self._session.run(
            ["x_vector"], {"samples": np.ascontiguousarray(samples, np.float32)}
        )
        return x_vector
