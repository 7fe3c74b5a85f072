"""The second bundle layout, ``onnx-community/Qwen3-TTS-12Hz-...``, whose graphs do less than ours.

Ids, speakers and tokenizer are in files of the checkpoint, here or in the folder above.
Tested with graphs of the same names, shapes and quirks, not with the published files.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from wyoming_qwen3tts import errors
from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.runtime import graphs, manifest
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.runtime.manifest import Manifest, ModelFacts
from wyoming_qwen3tts.runtime.sampling import SamplingOptions, process_logits, sample
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling, SpeechModel, TalkerOutput
from wyoming_qwen3tts.runtime.tokenizer import TOKENIZER_FILES, BpeTokenizer, read_json_object

_LOGGER = logging.getLogger(__name__)

# Files of the checkpoint that must be there; the codec's are the same in all checkpoints.
CHECKPOINT_FILES: Final = ("config.json", "generation_config.json", *TOKENIZER_FILES)
_SAMPLES_PER_FRAME: Final = 1920
_NUM_GROUPS: Final = 16
_CODEC: Final = {"output_sample_rate": 24_000, "decode_upsample_rate": _SAMPLES_PER_FRAME}
_TALKER_INPUTS: Final = ("inputs_embeds", "position_ids", "attention_mask")
# The three axes of the official rotary embedding always agree for speech.
_ROPE_AXES: Final = 3
_WINDOW_FRAMES: Final = 25
_HOP_FRAMES: Final = 12
# Frames since the first window began, and the codes (n, G) of the last of them.
_WindowState: TypeAlias = tuple[int, Int64Array]
# The clip encoder takes one second, and gives this many frames for it.
_ENCODER_SAMPLES: Final = 24_000
_ENCODER_FRAMES: Final = 12
# Frames of left context that are encoded again in each window after the first.
_ENCODER_CONTEXT_FRAMES: Final = 9


def is_onnx_community(directory: Path) -> bool:
    """Return whether a directory holds a bundle of this layout."""
    try:
        values = read_json_object(directory / manifest.MANIFEST_NAME)
    except BundleError:
        return False
    return isinstance(values.get("sub_models"), dict)


def read_onnx_community_manifest(directory: Path) -> Manifest:
    """Return what our own manifest would say; raise a BundleError if a file is unreadable."""
    return _read_files(directory)[0]


def open_onnx_community(directory: Path, num_threads: int) -> SpeechModel:
    """Open a bundle of this layout; raise a BundleError if a file is missing or does not fit."""
    own, checkpoint = _read_files(directory)
    facts = own.facts

    def graph(name: str, *inputs: str) -> _Graph:
        return _Graph(directory / f"{name}.onnx", num_threads, inputs)

    def encoder(component: str) -> Callable[[], _Graph]:
        return partial(_Graph, directory / f"{component}.onnx", num_threads, ("audio",))

    is_base = facts.model_type == "base"
    return SpeechModel(
        name=own.name,
        facts=facts,
        tokenizer=BpeTokenizer(checkpoint),
        embeddings=_GraphEmbeddings(
            graph("text_embed", "text_ids"),
            graph("codec_embed", "codec_ids"),
            graph("residual_embed", "codec_ids"),
        ),
        talker=_ConcatenatingTalker(graph("talker_cache", *_TALKER_INPUTS), facts),
        code_predictor=_TeacherForcedPredictor(
            graph("code_predictor", "talker_hidden", "codec_ids")
        ),
        codec_decoder=_WindowedDecoder(graph("tok_decoder", "audio_codes")),
        # As with our own bundles, the encoders are opened for each clip and closed again.
        codec_encoder=partial(_encode_codes, encoder("tok_encoder")) if is_base else None,
        speaker_encoder=partial(_embed_speaker, encoder("speaker_encoder")) if is_base else None,
        encoder_id=own.encoder_id,
    )


def _read_files(directory: Path) -> tuple[Manifest, Path]:
    """Return the manifest, and the directory of the checkpoint's files."""
    path = directory / manifest.MANIFEST_NAME
    repo = str(read_json_object(path).get("model_id", ""))
    checkpoint = _find_checkpoint(directory, Path(repo).name)
    config = read_json_object(checkpoint / "config.json")
    generation = read_json_object(checkpoint / "generation_config.json")
    try:
        facts = manifest.facts_from_checkpoint(config, _CODEC, generation)
    except errors.CheckpointError as error:
        raise BundleError(f"{checkpoint} does not fit: {error}") from error
    paths = [file for file in sorted(directory.iterdir()) if file.is_file() and file != path]
    own = Manifest(
        name=facts.model_name,
        recipe=directory.name.rsplit("_", 1)[-1],
        facts=facts,
        source=manifest.BundleSource(repo),
        files=tuple(map(_fingerprint, paths)),
    )
    return own, checkpoint


def _fingerprint(path: Path) -> manifest.BundleFile:
    """Let path, size and time of change stand in for the hash, which the bundle does not state."""
    status = path.stat()
    identity = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}".encode()
    return manifest.BundleFile(path.name, status.st_size, hashlib.sha256(identity).hexdigest())


def _find_checkpoint(directory: Path, name: str) -> Path:
    """Return the first place that has every file: files of two models must not be mixed."""
    missing: list[str] = []
    for place in (directory, directory.parent):
        missing = [file for file in CHECKPOINT_FILES if not (place / file).is_file()]
        if not missing:
            return place
    raise BundleError(
        f"{directory} has the onnx-community layout, which needs files of the checkpoint; "
        f"{directory.parent} has no {', '.join(missing)}. Put {', '.join(CHECKPOINT_FILES)} from "
        f"https://huggingface.co/Qwen/{name} there."
    )


class _Graph:
    """An opened graph; variants differ in types of inputs and names of outputs (``logits_Q4``)."""

    def __init__(self, path: Path, num_threads: int, inputs: Sequence[str]) -> None:
        self._session = graphs.open_session(path, num_threads)
        graphs.check_graph_io(self._session, path, inputs=inputs, outputs=[])
        self.shapes = {value.name: value.shape for value in self._session.get_inputs()}
        self.types = {
            value.name: {"tensor(float16)": np.float16, "tensor(int64)": np.int64}.get(
                value.type, np.float32
            )
            for value in self._session.get_inputs()
        }

    def run(self, **feeds: AnyArray) -> list[AnyArray]:
        """Run the graph and return all outputs."""
        typed = {name: np.ascontiguousarray(feeds[name], self.types[name]) for name in feeds}
        result: list[AnyArray] = self._session.run(None, typed)
        return result


class _GraphEmbeddings:
    """Embeddings that are graphs: text with its projection, codec rows, sums of frames."""

    def __init__(self, text: _Graph, codec: _Graph, residual: _Graph) -> None:
        self._text, self._codec, self._residual = text, codec, residual

    def text(self, ids: Sequence[int]) -> Float32Array:
        return _as_float32(self._text.run(text_ids=np.asarray([ids], np.int64))[0][0])

    def codec(self, ids: Sequence[int]) -> Float32Array:
        return _as_float32(self._codec.run(codec_ids=np.asarray([ids], np.int64))[0][0])

    def frames(self, codes: Int64Array) -> Float32Array:
        return _as_float32(self._residual.run(codec_ids=codes)[0])


class _ConcatenatingTalker:
    """``talker_cache.onnx``: takes a lane's past without gaps, so each step copies it.

    Lanes run one after the other, because the graph knows one length for all.
    """

    def __init__(self, graph: _Graph, facts: ModelFacts) -> None:
        # The exporter named the cache by accident; its order is that of KVCache.blocks.
        self._past_names = [name for name in graph.types if name not in _TALKER_INPUTS]
        _, self._num_heads, _, self._head_size = graph.shapes[self._past_names[0]]
        if (width := graph.shapes["inputs_embeds"][2]) != facts.hidden_size:
            raise errors.GraphInterfaceError(
                f"talker_cache.onnx is of width {width}, but config.json says {facts.hidden_size}: "
                "the files are of two models. Fetch them again."
            )
        self._graph, self._facts = graph, facts
        # Kept, because copying into fresh memory, page by page, takes seven times as long.
        self._scratch: list[AnyArray] = []

    def new_cache(self, num_lanes: int, capacity: int) -> KVCache:
        return KVCache(
            num_layers=len(self._past_names) // 2,
            num_lanes=num_lanes,
            num_heads=self._num_heads,
            head_size=self._head_size,
            capacity=capacity,
            max_positions=self._facts.max_positions,
            dtype=self._graph.types[self._past_names[0]],
        )

    def prefill(self, embeddings: Float32Array, cache: KVCache, lane: int) -> TalkerOutput:
        past = int(cache.lengths[lane])
        length = past + len(embeddings)
        cache.reserve(length)
        logits, hidden, *present = self._graph.run(
            inputs_embeds=embeddings[None],
            position_ids=np.broadcast_to(np.arange(past, length), (_ROPE_AXES, 1, length - past)),
            attention_mask=np.ones((1, length), np.int64),
            **dict(zip(self._past_names, self._copy_past(cache.blocks, lane, past), strict=True)),
        )
        for block, grown in zip(cache.blocks, present, strict=True):
            block[lane, :, past:length] = grown[0, :, past:]
        cache.lengths[lane] = length
        # Every code, then end of speech: the official code suppresses all other columns.
        columns = [*range(self._facts.codebook_size), self._facts.codec_ids.eos]
        return TalkerOutput(_as_float32(logits[:, -1, columns]), _as_float32(hidden[:, -1]))

    def step(
        self, embeddings: Float32Array, cache: KVCache, active_mask: Sequence[bool]
    ) -> TalkerOutput:
        logits = np.zeros((len(embeddings), self._facts.codebook_size + 1), np.float32)
        hidden = np.zeros((len(embeddings), self._facts.hidden_size), np.float32)
        for lane in np.flatnonzero(active_mask).tolist():
            output = self.prefill(embeddings[lane : lane + 1], cache, lane)
            logits[lane], hidden[lane] = output.logits[0], output.hidden[0]
        return TalkerOutput(logits, hidden)

    def _copy_past(self, blocks: Sequence[AnyArray], lane: int, length: int) -> list[AnyArray]:
        """Return one lane's first positions, (1, H, length, K) for each block."""
        shape = (1, self._num_heads, length, self._head_size)
        if not self._scratch or self._scratch[0].size < blocks[0][0].size:
            self._scratch = [np.empty(block[0].size, block.dtype) for block in blocks]
        views = [scratch[: math.prod(shape)].reshape(shape) for scratch in self._scratch]
        for view, block in zip(views, blocks, strict=True):
            np.copyto(view, block[lane : lane + 1, :, :length])
        return views


class _TeacherForcedPredictor:
    """``code_predictor.onnx``: scores all groups in each run; codes not known yet are zeros."""

    def __init__(self, graph: _Graph) -> None:
        self._graph = graph

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        codes = np.zeros((len(code0), _NUM_GROUPS), np.int64)
        codes[:, 0] = code0
        failed = np.zeros(len(code0), np.bool_)
        controls = [(float(t), int(k), float(p)) for t, k, p in zip(*sampling[1:], strict=True)]
        for group in range(1, _NUM_GROUPS):
            scores = _as_float32(self._graph.run(talker_hidden=hidden, codec_ids=codes)[0])
            for lane, uniform in enumerate(sampling.uniforms[:, group - 1].tolist()):
                options = SamplingOptions(uniform > 0, *controls[lane])
                processed = process_logits(scores[lane, group - 1], frozenset(), options)
                try:
                    codes[lane, group] = sample(processed, uniform)
                except errors.SynthesisError:
                    failed[lane] = True
        codes[failed] = -1
        return codes[:, 1:]


class _WindowedDecoder:
    """``tok_decoder.onnx``: decodes windows of 25 frames without state.

    Window w begins with frame 12 w, and a frame is taken from the first window that reaches it,
    whatever the cut into calls. Frames behind the first window have at least 13 frames of left
    context, the reach of the convolutions, but less than the 72 frames of attention.
    """

    # Calls that need one run each: the first three add up to 13, later ones end with windows.
    chunk_ramp: tuple[int, ...] = (1, 4, 8, _HOP_FRAMES)

    def __init__(self, graph: _Graph) -> None:
        self._graph = graph

    def initial_state(self) -> _WindowState:
        return 0, np.zeros((0, _NUM_GROUPS), np.int64)

    def decode(self, codes: Int64Array, state: _WindowState) -> tuple[Float32Array, _WindowState]:
        position, recent = state
        known = np.concatenate([recent, codes])
        first_known, end = position - len(recent), position + len(codes)
        frame, pieces = position, []
        while frame < end:
            # The first window that reaches the frame.
            start = max(0, -(-(frame + 1 - _WINDOW_FRAMES) // _HOP_FRAMES)) * _HOP_FRAMES
            stop = min(start + _WINDOW_FRAMES, end)
            samples = self._run(known[start - first_known : stop - first_known])
            pieces.append(samples[(frame - start) * _SAMPLES_PER_FRAME :])
            frame = stop
        # The next frame's window begins at most this many frames before it.
        return np.concatenate(pieces), (end, known[-(_WINDOW_FRAMES - 1) :])

    def advance(self, codes: Int64Array, state: _WindowState) -> _WindowState:
        # Windows begin again: the last 12 frames are the left context of the first one.
        known = np.concatenate([state[1], codes])[-_HOP_FRAMES:]
        return len(known), known

    def _run(self, codes: Int64Array) -> Float32Array:
        """Decode up to a window of codes (F, G) into samples (F * samples per frame,)."""
        padded = np.zeros((1, _WINDOW_FRAMES, _NUM_GROUPS), np.int64)
        padded[0, : len(codes)] = codes
        samples = _as_float32(self._graph.run(audio_codes=padded)[0]).reshape(-1)
        return samples[: len(codes) * _SAMPLES_PER_FRAME]


def _encode_codes(open_graph: Callable[[], _Graph], samples: Float32Array) -> Int64Array:
    """Return codes (F, G) of mono samples (S,); approximate after the first second.

    Each further window has 9 frames of left context; the exact encoder attends over everything.
    """
    graphs.check_clip(samples, 1)
    _LOGGER.warning("Clip encoder: approximate; a bundle built from the checkpoint is exact")
    graph, num_frames = open_graph(), -(-len(samples) // _SAMPLES_PER_FRAME)
    last_start = max(0, num_frames - _ENCODER_CONTEXT_FRAMES - 1)
    pieces = []
    for start in range(0, last_start + 1, _ENCODER_FRAMES - _ENCODER_CONTEXT_FRAMES):
        part = samples[start * _SAMPLES_PER_FRAME :][:_ENCODER_SAMPLES]
        audio = np.pad(part, (0, _ENCODER_SAMPLES - len(part)))[None, None]
        codes = np.asarray(graph.run(audio=audio)[0], np.int64)[0, :_ENCODER_FRAMES, :_NUM_GROUPS]
        pieces.append(codes[_ENCODER_CONTEXT_FRAMES if start else 0 :])
    return np.concatenate(pieces)[:num_frames]


def _embed_speaker(open_graph: Callable[[], _Graph], samples: Float32Array) -> Float32Array:
    """Return the x-vector (D,) of mono samples (S,)."""
    graphs.check_clip(samples, graphs.MIN_SPEAKER_SAMPLES)
    return _as_float32(open_graph().run(audio=samples[None])[0]).reshape(-1)


def _as_float32(array: AnyArray) -> Float32Array:
    return np.asarray(array, np.float32)
