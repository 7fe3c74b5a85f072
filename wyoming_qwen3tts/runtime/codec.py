"""Runs the codec's graphs: codes to audio, and audio to codes."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnxruntime as ort

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.errors import GraphInterfaceError, VoiceError
from wyoming_qwen3tts.runtime.session import check_graph_io

CHUNK_RAMP_FRAMES = (1, 2, 4)
"""Audio starts as early as it can; later, one call for four frames costs less than four calls."""

_NEXT_PREFIX = "next_"
# Longer calls are cut: the result is the same, memory is bounded, and longer runs are no faster.
_MAX_FRAMES_PER_RUN = 8


class DecoderState:
    """What the decoder carries between calls; never changed, so keeping a reference is a fork."""

    __slots__ = ("position", "values")

    def __init__(self, position: int, values: Mapping[str, ort.OrtValue]) -> None:
        """Wrap the states after ``position`` frames."""
        self.position = position
        self.values = MappingProxyType(dict(values))


class OnnxCodecDecoder:
    """The codec decoder of one bundle."""

    def __init__(self, session: ort.InferenceSession, path: Path) -> None:
        """Wrap the session of ``codec_decoder.onnx``.

        Raises:
            GraphInterfaceError: The graph lacks an input or output.
        """
        check_graph_io(session, path, inputs=["codes", "position"], outputs=["samples"])
        inputs = {value.name: value for value in session.get_inputs()}
        state_names = [name for name in inputs if name not in ("codes", "position")]
        check_graph_io(
            session,
            path,
            inputs=[],
            outputs=[f"{_NEXT_PREFIX}{name}" for name in state_names],
        )
        self._session = session
        self._state_names = state_names
        self._outputs = ["samples", *(f"{_NEXT_PREFIX}{name}" for name in state_names)]
        values = {}
        for name in state_names:
            if inputs[name].type != "tensor(float)":
                raise GraphInterfaceError(
                    f"{path}: the state {name!r} is no float32 tensor. "
                    "Build the bundle again with this version."
                )
            # A dimension without a fixed size is a history, which starts empty.
            shape = [dim if isinstance(dim, int) else 0 for dim in inputs[name].shape]
            values[name] = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        self._initial_state = DecoderState(0, values)

    @property
    def chunk_ramp(self) -> tuple[int, ...]:
        """Frames of the first calls that suit this decoder; the last size stays."""
        return CHUNK_RAMP_FRAMES

    def initial_state(self) -> DecoderState:
        """Return the state before the first frame."""
        return self._initial_state

    def decode(self, codes: Int64Array, state: DecoderState) -> tuple[Float32Array, DecoderState]:
        """Decode codes (F, G), F >= 1, into samples (S,) in [-1, 1] and the next state."""
        pieces = []
        for start in range(0, len(codes), _MAX_FRAMES_PER_RUN):
            samples, state = self._run(codes[start : start + _MAX_FRAMES_PER_RUN], state)
            pieces.append(samples)
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)), state

    def advance(self, codes: Int64Array, state: DecoderState) -> DecoderState:
        """Return the state after codes (F, G), F >= 1, whose samples nobody wants."""
        return self.decode(codes, state)[1]

    def _run(self, codes: Int64Array, state: DecoderState) -> tuple[Float32Array, DecoderState]:
        feeds = dict(state.values)
        feeds["codes"] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(codes, np.int64))
        feeds["position"] = ort.OrtValue.ortvalue_from_numpy(np.array(state.position, np.int64))
        samples, *values = self._session.run_with_ort_values(self._outputs, feeds)
        next_state = DecoderState(
            state.position + len(codes), dict(zip(self._state_names, values, strict=True))
        )
        return samples.numpy(), next_state


class OnnxCodecEncoder:
    """The codec encoder of one Base bundle."""

    def __init__(self, session: ort.InferenceSession, path: Path) -> None:
        """Wrap the session of ``codec_encoder.onnx``.

        Raises:
            GraphInterfaceError: The graph lacks an input or output.
        """
        check_graph_io(session, path, inputs=["samples"], outputs=["codes"])
        self._session = session

    def encode(self, samples: Float32Array) -> Int64Array:
        """Return codes (F, G) of mono samples (S,); a last part of a frame makes a whole one.

        Raises:
            VoiceError: There is no sample.
        """
        if len(samples) == 0:
            raise VoiceError("The reference clip is empty; record a few seconds of speech.")
        codes: Int64Array
        (codes,) = self._session.run(
            ["codes"], {"samples": np.ascontiguousarray(samples, np.float32)}
        )
        return codes
