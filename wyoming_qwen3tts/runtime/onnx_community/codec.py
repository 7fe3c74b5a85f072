"""Runs the published codec graphs, whose lengths are fixed: 25 frames decoded, 1 s encoded.

What fixed lengths cost in exactness is stated at each class, as it was measured.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.errors import VoiceError
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.onnx_community.graph import PublishedGraph, as_float32

_LOGGER = logging.getLogger(__name__)

CONTEXT_FRAMES: Final = 13
"""Frames of left context that are decoded again in each window after the first."""
ENCODER_CONTEXT_FRAMES: Final = 9
"""Frames of left context that are encoded again in each window after the first."""

# The first calls grow by this factor.
_RAMP_FACTOR = 4
_MIN_SAMPLES = 1280


@dataclass(frozen=True, eq=False)
class WindowState:
    """What the decoder knows of an utterance; never changed, so keeping a reference is a fork."""

    position: int
    """Frames since the first window began."""
    codes: Int64Array
    """(n, G): the last of them."""


class PublishedCodecDecoder:
    """``tok_decoder.onnx``: the codec decoder of a published bundle, without state.

    Windows of 25 frames lie at fixed places: window w begins with frame 12 w, and a frame is taken
    from the first window that reaches it, so that all but the first 13 have at least 13 frames of
    left context. So a frame's samples depend on nothing but the frames before it, whatever the cut
    into calls, and seams lie 0.96 s apart.

    Cost: 25 / 12 = 2.08 decoded frames for each new one in calls that end where windows do
    (``chunk_ramp``); a call of 4 frames decodes 25, or 50 across a seam.

    Error against the whole decode in one piece (our own, stateful graph), and of the first frame
    behind a seam alone, as signal-to-noise ratio in dB on random weights:

    =======  ====================  ==========================  =============================
    context  decoded per new one   tiny (attention over 9      published dimensions (over 72
                                   frames, 2 layers)           frames, 8 layers)
    =======  ====================  ==========================  =============================
    0        1.00                  10, 2                       8, 1
    8        1.47                  31, 23                      13, 11
    **13**   **2.08**              **50, 42**                  **14, 13**
    17       3.12                  66, 61                      15, 14
    21       6.25                  85, 82                      15, 15
    23       12.5                  100, 100                    15, 16
    =======  ====================  ==========================  =============================

    13 frames cover the reach of the convolutions (11.4 frames). What is left comes from attention,
    which looks back further than a window is long: there, more context costs much and mends little.
    Trained weights could not be measured. Fading the step at a seam out was tried and left out: it
    made the step larger.
    """

    def __init__(
        self, graph: PublishedGraph, facts: ModelFacts, context_frames: int = CONTEXT_FRAMES
    ) -> None:
        """Wrap the graph.

        Raises:
            GraphInterfaceError: Windows are open or too short, or of another model.
        """
        window = graph.size("audio_codes", 1)
        if window is None or window <= context_frames:
            raise graph.contract_error(
                f"decodes windows of {window} frames, where more than {context_frames} are needed"
            )
        graph.check_size("audio_codes", 2, facts.num_code_groups)
        self._graph = graph
        self._window = window
        self._hop = window - context_frames
        self._facts = facts

    @property
    def chunk_ramp(self) -> tuple[int, ...]:
        """Sizes of calls that need one run each: 1, 4, 8, then always 12.

        Windows end 25, 37, 49, ... frames behind the start. The first calls add up to the context,
        25 - 12, so that the later ones end where windows do.
        """
        sizes, left, size = [], self._window - self._hop, 1
        while left > 0:
            sizes.append(min(size, left))
            left -= sizes[-1]
            size *= _RAMP_FACTOR
        return (*sizes, self._hop)

    def initial_state(self) -> WindowState:
        """Return the state before the first frame."""
        return WindowState(0, np.zeros((0, self._facts.num_code_groups), np.int64))

    def decode(self, codes: Int64Array, state: WindowState) -> tuple[Float32Array, WindowState]:
        """Decode codes (F, G), F >= 1, into samples (S,) in [-1, 1] and the next state.

        Raises:
            GraphInterfaceError: The number of samples contradicts the configuration.
        """
        known = np.concatenate([state.codes, codes])
        first_known = state.position - len(state.codes)
        end = state.position + len(codes)
        frame, pieces = state.position, []
        while frame < end:
            start = self._window_start(frame)
            stop = min(start + self._window, end)
            samples = self._run(known[start - first_known : stop - first_known])
            begin = (frame - start) * self._facts.samples_per_frame
            pieces.append(samples[begin : (stop - start) * self._facts.samples_per_frame])
            frame = stop
        # A window that the next frame opens or goes on with begins this many frames before it at
        # most.
        kept = known[-(self._window - 1) :]
        return np.concatenate(pieces), WindowState(end, kept)

    def advance(self, codes: Int64Array, state: WindowState) -> WindowState:
        """Return the state after codes (F, G), F >= 1, whose samples nobody wants.

        Nothing is decoded. Windows begin anew, so that calls of ``chunk_ramp`` end where they do:
        the last 12 frames are the left context of the first one.
        """
        known = np.concatenate([state.codes, codes])[-self._hop :]
        return WindowState(len(known), known)

    def _window_start(self, frame: int) -> int:
        """Return the first frame of the first window that reaches ``frame``."""
        return max(0, -(-(frame + 1 - self._window) // self._hop)) * self._hop

    def _run(self, codes: Int64Array) -> Float32Array:
        """Decode up to a window of codes (F, G), padded on the right, which is not heard."""
        padded = np.zeros((1, self._window, codes.shape[1]), np.int64)
        padded[0, : len(codes)] = codes
        samples = as_float32(self._graph.run({"audio_codes": padded})[0]).reshape(-1)
        if len(samples) != self._window * self._facts.samples_per_frame:
            raise self._graph.contract_error(
                f"makes {len(samples)} samples of {self._window} frames, but the model's "
                f"configuration says {self._facts.samples_per_frame} per frame"
            )
        return samples


class PublishedCodecEncoder:
    """``tok_encoder.onnx``: the codec encoder of a published Base bundle, one second at a time.

    A second is 12.5 frames, for which the graph gives 13: the last one is half padding. Encoding
    second by second, as the published script does, makes 91 frames of 6.3 s instead of 79, and each
    second ends with half a frame of nothing and begins without a past. Here windows lie on the grid
    of frames instead, only whole frames are kept, and all but the first window begin with 9 frames
    of left context. That costs 4 runs per second of audio, once per clip.

    The number of frames and their places are exact, and so are the codes of the first window, those
    after it are not: the encoder attends over everything before, of which a window knows a second.
    Share of those that equal the exact encoder's, on random tiny weights (3 seeds) and 6.3 s of a
    synthetic voice (2 pitches), lowest to highest; the last row counts the first second too:

    =======================  =============  ================  ================
    context                  runs a second  group 0           all groups
    =======================  =============  ================  ================
    0                        1              64 % to 88 %      17 % to 28 %
    4                        1.6            73 % to 97 %      24 % to 36 %
    **9**                    **4**          **88 % to 96 %**  **32 % to 43 %**
    11                       12.5           85 % to 97 %      32 % to 44 %
    second by second         1              66 % to 84 %      25 % to 31 %
    =======================  =============  ================  ================

    Residual groups of random codebooks amplify every difference; trained ones could not be
    measured. A voice that only has an x-vector is not affected, and our own bundle encodes any
    length exactly.
    """

    def __init__(self, open_graph: Callable[[], PublishedGraph], facts: ModelFacts) -> None:
        """Take a function that opens the graph, which is held for one clip only."""
        self._open_graph = open_graph
        self._facts = facts

    def encode(self, samples: Float32Array) -> Int64Array:
        """Return codes (F, G) of mono samples (S,) at the model's rate; F = ceil(S / 1920).

        Raises:
            VoiceError: There is no sample.
            GraphInterfaceError: The graph has no fixed length, or one that is too short.
        """
        if len(samples) == 0:
            raise VoiceError("The reference clip is empty; record a few seconds of speech.")
        _LOGGER.warning(
            "This bundle encodes a reference clip in windows of a second, so its codes are near "
            "the right ones and not equal; a bundle built from the checkpoint encodes exactly."
        )
        graph, per_frame = self._open_graph(), self._facts.samples_per_frame
        window = graph.size("audio", 2)
        if window is None or window < (ENCODER_CONTEXT_FRAMES + 1) * per_frame:
            raise graph.contract_error(
                f"encodes windows of {window} samples, where at least "
                f"{(ENCODER_CONTEXT_FRAMES + 1) * per_frame} are needed"
            )
        whole_frames, num_frames = window // per_frame, -(-len(samples) // per_frame)
        pieces, frame = [], 0
        while frame < num_frames:
            start = max(0, frame - ENCODER_CONTEXT_FRAMES)
            audio = np.zeros((1, 1, window), np.float32)
            part = samples[start * per_frame :][:window]
            audio[0, 0, : len(part)] = part
            codes = np.asarray(graph.run({"audio": audio})[0], np.int64)[0]
            stop = min(start + whole_frames, num_frames)
            pieces.append(codes[frame - start : stop - start, : self._facts.num_code_groups])
            frame = stop
        return np.concatenate(pieces)


class PublishedSpeakerEncoder:
    """``speaker_encoder.onnx``: a reference clip of any length to an x-vector."""

    def __init__(self, open_graph: Callable[[], PublishedGraph], facts: ModelFacts) -> None:
        """Take a function that opens the graph, which is held for one clip only."""
        self._open_graph = open_graph
        self._facts = facts

    def embed(self, samples: Float32Array) -> Float32Array:
        """Return the x-vector (D,) of mono samples (S,) at the model's sample rate.

        Raises:
            VoiceError: The clip is too short.
            GraphInterfaceError: The graph is that of another model.
        """
        if len(samples) < _MIN_SAMPLES:
            raise VoiceError(
                f"The reference clip has {len(samples)} samples, but the speaker encoder needs "
                f"at least {_MIN_SAMPLES}; record a few seconds of speech."
            )
        graph = self._open_graph()
        x_vector = as_float32(graph.run({"audio": samples[None]})[0]).reshape(-1)
        if len(x_vector) != self._facts.hidden_size:
            raise graph.contract_error(
                f"gives x-vectors of width {len(x_vector)}, but the model's vectors are "
                f"{self._facts.hidden_size} wide"
            )
        return x_vector
