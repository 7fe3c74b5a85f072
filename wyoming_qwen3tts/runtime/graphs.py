"""Opens and runs the ONNX graphs of our own bundles."""

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError, GraphInterfaceError, VoiceError, is_out_of_memory
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling, TalkerOutput

_LOGGER = logging.getLogger(__name__)

MIN_SPEAKER_SAMPLES: Final = 1280
"""Five mel frames: what the widest reflecting convolution of the speaker encoder needs."""

# Longer codec calls are cut: the result is the same, memory is bounded, longer runs are no faster.
_MAX_FRAMES_PER_RUN: Final = 8


def open_session(path: Path, num_threads: int) -> ort.InferenceSession:
    """Open a graph; raise a BundleError if it cannot be loaded, or memory ran out.

    Sessions share one thread pool: pools of their own spin against each other and cost more than
    half of the speed. The first session fixes the pool's size for the process.
    """
    _create_thread_pool(num_threads)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own and built-in ones
        if is_out_of_memory(error):
            problem = "out of memory. Close other programs, or use a smaller model or precision."
        else:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            problem = f"{reason}. Build or fetch the bundle again."
        raise BundleError(f"{path} cannot be loaded: {problem}") from error


@functools.cache
def _create_thread_pool(num_threads: int) -> None:
    """Create onnxruntime's pool; the process has one, and its size cannot be changed."""
    try:
        ort.set_global_thread_pool_sizes(num_threads, 1)
    except Fail:
        _LOGGER.warning("Thread pool: it has another size; threads=%d has no effect", num_threads)


def check_graph_io(
    session: ort.InferenceSession, path: Path, *, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Raise a GraphInterfaceError if a graph lacks one of these inputs and outputs."""
    known = {f"input {value.name!r}" for value in session.get_inputs()}
    known |= {f"output {value.name!r}" for value in session.get_outputs()}
    wanted = [*(f"input {name!r}" for name in inputs), *(f"output {name!r}" for name in outputs)]
    if missing := [name for name in wanted if name not in known]:
        raise GraphInterfaceError(
            f"{path} has no {', no '.join(missing)}. Build the bundle again with this version."
        )


class OnnxTalker:
    """``talker.onnx``: prefill and step over a KV cache whose blocks are both input and output."""

    def __init__(self, path: Path, num_threads: int, max_positions: int) -> None:
        """Open the graph; ``max_positions`` is limited to the rows of its rotary tables."""
        session = open_session(path, num_threads)
        past = [value for value in session.get_inputs() if value.name.startswith("past_key_")]
        layers = range(max(len(past), 1))
        names = [f"{kind}_{layer}" for layer in layers for kind in ("key", "value")]
        self._past_names = [f"past_{name}" for name in names]
        self._present_names = [f"present_{name}" for name in names]
        inputs = ["embeddings", "last_positions", "total_length", *self._past_names]
        outputs = ["logits", "hidden", *self._present_names]
        check_graph_io(session, path, inputs=inputs, outputs=outputs)
        self._session = session
        self._num_layers = len(past)
        self._num_heads, self._head_size = past[0].shape[1], past[0].shape[3]
        # Older bundles do not state the rows.
        rows = session.get_modelmeta().custom_metadata_map.get("max_positions", max_positions)
        self._max_positions = min(max_positions, int(rows))
        # onnxruntime spends more on dispatch than on a small copy: one binding object is reused.
        self._binding = session.io_binding()

    def new_cache(self, num_lanes: int, capacity: int) -> KVCache:
        """Make an empty cache for ``num_lanes`` lanes of ``capacity`` positions each."""
        return KVCache(
            num_layers=self._num_layers,
            num_lanes=num_lanes,
            num_heads=self._num_heads,
            head_size=self._head_size,
            capacity=capacity,
            max_positions=self._max_positions,
        )

    def prefill(self, embeddings: Float32Array, cache: KVCache, lane: int) -> TalkerOutput:
        """Append ``embeddings`` (T, D) to one lane; the output has B = 1."""
        length = int(cache.lengths[lane]) + len(embeddings)
        cache.reserve(length)
        output = self._run(embeddings[None], cache, slice(lane, lane + 1), [length - 1])
        cache.lengths[lane] = length
        return output

    def step(
        self, embeddings: Float32Array, cache: KVCache, active_mask: Sequence[bool]
    ) -> TalkerOutput:
        """Append one position (B, D) to lanes 0 .. B-1; inactive lanes keep their length."""
        num_lanes = len(embeddings)
        lengths = cache.lengths[:num_lanes]
        cache.reserve(int(lengths.max()) + 1)
        # An inactive lane writes behind its length; its next step overwrites that position.
        output = self._run(embeddings[:, None], cache, slice(0, num_lanes), lengths.tolist())
        cache.lengths[:num_lanes] += np.asarray(active_mask, np.int32)
        return output

    def _run(
        self, embeddings: Float32Array, cache: KVCache, lanes: slice, last_positions: Sequence[int]
    ) -> TalkerOutput:
        binding = self._binding
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        binding.bind_cpu_input("embeddings", np.ascontiguousarray(embeddings, np.float32))
        binding.bind_cpu_input("last_positions", np.asarray(last_positions, np.int32))
        binding.bind_cpu_input("total_length", np.asarray(max(last_positions) + 1, np.int32))
        names = zip(self._past_names, self._present_names, cache.blocks, strict=True)
        for past, present, block in names:
            shared = ort.OrtValue.ortvalue_from_numpy(block[lanes])
            binding.bind_ortvalue_input(past, shared)
            binding.bind_ortvalue_output(present, shared)
        binding.bind_output("logits")
        binding.bind_output("hidden")
        self._session.run_with_iobinding(binding)
        logits, hidden = (value.numpy() for value in binding.get_outputs()[-2:])
        return TalkerOutput(logits, hidden)


class OnnxCodePredictor:
    """``code_predictor.onnx``: groups 1 .. G-1 of a frame in one call, sampled in the graph."""

    def __init__(self, path: Path, num_threads: int) -> None:
        """Open the graph."""
        self._session = open_session(path, num_threads)
        controls = ["uniforms", "temperature", "top_k", "max_top_k", "top_p", "forced_codes"]
        inputs, outputs = ["hidden", "code0", *controls], ["codes", "group_logits"]
        check_graph_io(self._session, path, inputs=inputs, outputs=outputs)
        shapes = {value.name: value.shape for value in self._session.get_outputs()}
        _, self._num_groups, self._codebook_size = shapes["group_logits"]

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        """Return codes (B, G - 1) from hidden (B, D) and group 0 (B,); -1 if scores overflowed."""
        top_k = np.where(sampling.top_k > 0, sampling.top_k, self._codebook_size)
        top_k = np.minimum(top_k, self._codebook_size).astype(np.int64)
        feeds = {
            "hidden": hidden,
            "code0": code0,
            "uniforms": sampling.uniforms,
            "temperature": sampling.temperature,
            "top_k": top_k,
            "max_top_k": top_k.max(keepdims=True),
            "top_p": sampling.top_p,
            "forced_codes": np.full((len(code0), self._num_groups), -1, np.int64),
        }
        codes, scores = self._session.run(["codes", "group_logits"], feeds)
        # Graphs of revision 1 draw rank 0 from broken scores. A sum is finite where all terms are.
        is_finite = np.isfinite(scores.sum(axis=(1, 2)))
        return np.where(is_finite[:, None], codes, -1)


class DecoderState(NamedTuple):
    """Frames decoded so far, and the graph's state after them; never changed in place."""

    position: int
    values: Mapping[str, ort.OrtValue]

    @property
    def num_bytes(self) -> int:
        """Memory of the float32 tensors."""
        return sum(4 * math.prod(value.shape()) for value in self.values.values())


class OnnxCodecDecoder:
    """``codec_decoder.onnx``: codes to audio with a state, so any cut gives the same samples."""

    chunk_ramp: tuple[int, ...] = (1, 2, 4)
    """Early first audio, then few calls."""

    def __init__(self, path: Path, num_threads: int) -> None:
        """Open the graph."""
        session = open_session(path, num_threads)
        states = [v for v in session.get_inputs() if v.name not in ("codes", "position")]
        self._outputs = ["samples", *(f"next_{value.name}" for value in states)]
        check_graph_io(session, path, inputs=["codes", "position"], outputs=self._outputs)
        self._session = session
        values = {}
        for value in states:
            # A dimension without a fixed size is a history, which starts empty.
            shape = [dim if isinstance(dim, int) else 0 for dim in value.shape]
            values[value.name] = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        self._initial_state = DecoderState(0, values)

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
        """Return the state after codes (F, G), F >= 1."""
        return self.decode(codes, state)[1]

    def load_state(self, arrays: Mapping[str, AnyArray]) -> DecoderState:
        """Return a state that :func:`clip_state` made."""
        values = {
            name: ort.OrtValue.ortvalue_from_numpy(arrays[name])
            for name in self._initial_state.values
        }
        return DecoderState(int(arrays["position"]), values)

    def _run(self, codes: Int64Array, state: DecoderState) -> tuple[Float32Array, DecoderState]:
        feeds: dict[str, Any] = dict(state.values)
        feeds["codes"] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(codes, np.int64))
        feeds["position"] = ort.OrtValue.ortvalue_from_numpy(np.array(state.position, np.int64))
        samples, *values = self._session.run_with_ort_values(self._outputs, feeds)
        next_values = dict(zip(state.values, values, strict=True))
        return samples.numpy(), DecoderState(state.position + len(codes), next_values)


def encode_clip(
    path: Path, num_threads: int, output: str, min_samples: int, samples: Float32Array
) -> AnyArray:
    """Return the only output of an encoder graph for mono samples (S,) at 24 kHz.

    The graph is closed again: clips are rare, and the encoders are a third of a model's weights.
    """
    check_clip(samples, min_samples)
    session = open_session(path, num_threads)
    check_graph_io(session, path, inputs=["samples"], outputs=[output])
    feeds = {"samples": np.ascontiguousarray(samples, np.float32)}
    result: AnyArray = session.run([output], feeds)[0]
    return result


def clip_state(path: Path, num_threads: int, codes: Int64Array) -> dict[str, AnyArray]:
    """Return the codec decoder's state after a clip, for :meth:`OnnxCodecDecoder.load_state`."""
    decoder = OnnxCodecDecoder(path, num_threads)
    position, values = decoder.advance(codes, decoder.initial_state())
    return {"position": np.array(position)} | {key: each.numpy() for key, each in values.items()}


def check_clip(samples: Float32Array, min_samples: int) -> None:
    """Raise a VoiceError if a reference clip (S,) is too short for its encoder."""
    if len(samples) < min_samples:
        raise VoiceError(
            f"The reference clip has {len(samples)} samples, but its encoder needs at least "
            f"{min_samples}; record a few seconds of speech."
        )
