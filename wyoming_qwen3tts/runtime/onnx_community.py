"""The second bundle layout, ``onnx-community/Qwen3-TTS-12Hz-...``, whose graphs do less than ours.

* The talker returns its whole cache in each step, so positions are copied.
* The code predictor scores one group per run, so a frame takes G - 1 runs and is sampled here.
* Embeddings are graphs, not tables.
* The codec decodes 25 frames without state, and encodes one second.

Ids, speakers and tokenizer are files of the checkpoint, in the bundle or in the folder above it.
Tested with graphs of the same names, shapes and quirks, not with the published files.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import (
    BundleError,
    CheckpointError,
    GraphInterfaceError,
    ManifestError,
    SynthesisError,
)
from wyoming_qwen3tts.runtime import graphs, manifest
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.runtime.manifest import ModelFacts
from wyoming_qwen3tts.runtime.sampling import SamplingOptions, process_logits, sample
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling, SpeechModel, TalkerOutput
from wyoming_qwen3tts.runtime.tokenizer import TOKENIZER_FILES, load_tokenizer

_LOGGER = logging.getLogger(__name__)

CHECKPOINT_FILES: Final = ("config.json", "generation_config.json", *TOKENIZER_FILES)
"""Files of the checkpoint that must be there."""

# The codec is the same in all published checkpoints, so its configuration may be absent.
_PUBLISHED_CODEC: Final = {"output_sample_rate": 24_000, "decode_upsample_rate": 1920}
_TALKER_INPUTS: Final = ("inputs_embeds", "position_ids", "attention_mask")
_TYPES: Final[Mapping[str, type[np.generic]]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# The three axes of the official rotary embedding always agree for speech.
_ROPE_AXES: Final = 3
_WINDOW_FRAMES: Final = 25
_HOP_FRAMES: Final = 12
_ENCODER_SAMPLES: Final = 24_000
# Frames of left context that are encoded again in each window after the first.
_ENCODER_CONTEXT_FRAMES: Final = 9


class _Files(NamedTuple):
    """A bundle on disk, before any graph is loaded."""

    name: str
    """Name of the model, as in our own bundles of it."""
    model_id: str
    graphs: dict[str, str]
    """Component -> file name."""
    checkpoint_directory: Path
    config: dict[str, Any]
    facts: ModelFacts


def is_onnx_community(directory: Path) -> bool:
    """Return whether a directory holds a bundle of this layout."""
    try:
        values = _read_json(directory / manifest.MANIFEST_NAME)
    except BundleError:
        return False
    return isinstance(values.get("sub_models"), dict)


def open_onnx_community(directory: Path, num_threads: int) -> SpeechModel:
    """Open a bundle of this layout, such as ``.../cpu_int4``.

    Raises:
        BundleError: A file is missing or does not fit; the message names it and says what to do.
    """
    files = _read_files(directory)
    facts = files.facts

    def graph(component: str, *inputs: str) -> _Graph:
        if component not in files.graphs:
            raise BundleError(
                f"{directory} has no {component}: it is incomplete, or from before the talker had "
                "a cache. Fetch a newer bundle."
            )
        path = directory / files.graphs[component]
        if not path.is_file():
            raise BundleError(f"{path} is missing. Fetch the bundle again.")
        return _Graph(path, num_threads, inputs)

    # As with our own bundles, the encoders are opened for each clip and closed again.
    encoders = files.graphs.keys() if facts.model_type == "base" else ()
    return SpeechModel(
        name=files.name,
        facts=facts,
        tokenizer=load_tokenizer(files.checkpoint_directory),
        embeddings=_GraphEmbeddings(
            graph("text_embed", "text_ids"),
            graph("codec_embed", "codec_ids"),
            graph("residual_embed", "codec_ids"),
        ),
        talker=_ConcatenatingTalker(graph("talker_cache", *_TALKER_INPUTS), facts),
        code_predictor=_TeacherForcedPredictor(
            graph("code_predictor", "talker_hidden", "codec_ids"), facts
        ),
        codec_decoder=WindowedDecoder(graph("tok_decoder", "audio_codes"), facts),
        codec_encoder=partial(_encode_codes, partial(graph, "tok_encoder", "audio"), facts)
        if "tok_encoder" in encoders
        else None,
        speaker_encoder=partial(_embed_speaker, partial(graph, "speaker_encoder", "audio"))
        if "speaker_encoder" in encoders
        else None,
    )


def read_onnx_community_manifest(directory: Path) -> manifest.Manifest:
    """Return what our own manifest would say of a bundle of this layout, for lists and menus.

    Its manifest states no hashes: a file's path, size and time of change stand in for its contents.

    Raises:
        BundleError: The manifest or a file of the checkpoint is missing or damaged.
    """
    files = _read_files(directory)
    talker = files.config["talker_config"]
    variant = directory.name.rsplit("_", 1)[-1]
    paths = [path for path in sorted(directory.iterdir()) if path.is_file()]
    return manifest.Manifest(
        format_version=manifest.FORMAT_VERSION,
        name=files.name,
        device="cpu",
        recipe=variant,
        precision={},
        facts=files.facts,
        talker=manifest.TalkerLayout(
            num_layers=talker["num_hidden_layers"],
            num_kv_heads=talker["num_key_value_heads"],
            head_size=talker["head_dim"],
            max_positions=files.facts.max_positions,
            cache_type="float16" if variant == "fp16" else "float32",
        ),
        source=manifest.BundleSource(repo=files.model_id, revision=None, model_sha256=""),
        builder_version=__version__,
        files=tuple(_fingerprint(path) for path in paths if path.name != manifest.MANIFEST_NAME),
        quantization=(),
    )


def _fingerprint(path: Path) -> manifest.BundleFile:
    status = path.stat()
    identity = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}".encode()
    return manifest.BundleFile(path.name, status.st_size, hashlib.sha256(identity).hexdigest())


def _read_files(directory: Path) -> _Files:
    path = directory / manifest.MANIFEST_NAME
    values = _read_json(path, ManifestError)
    try:
        # Only the last part, so that no name leads out of the bundle.
        files = {name: Path(entry["filename"]).name for name, entry in values["sub_models"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"{path} does not say which file holds which graph ({error!r}). Fetch the bundle again."
        ) from error
    model_id = str(values.get("model_id", ""))
    checkpoint = _find_checkpoint(directory, model_id)
    config = _read_json(checkpoint / "config.json")
    codec_path = checkpoint / "speech_tokenizer" / "config.json"
    codec_config = _read_json(codec_path) if codec_path.is_file() else dict(_PUBLISHED_CODEC)
    generation = _read_json(checkpoint / "generation_config.json")
    try:
        facts = manifest.facts_from_checkpoint(config, codec_config, generation)
    except CheckpointError as error:
        raise BundleError(f"{checkpoint} does not fit: {error}") from error
    kind = facts.model_type.replace("_", "")
    name = model_id.rstrip("/").rsplit("/", 1)[-1] or f"Qwen3-TTS-12Hz-{facts.model_size}-{kind}"
    return _Files(name.lower(), model_id, files, checkpoint, config, facts)


def _find_checkpoint(directory: Path, model_id: str) -> Path:
    """Return the first place that has every file: files of two models must not be mixed."""
    missing = {
        place: [name for name in CHECKPOINT_FILES if not (place / name).is_file()]
        for place in (directory, directory.parent)
    }
    best = min(missing, key=lambda place: len(missing[place]))
    if not missing[best]:
        return best
    name = model_id.rstrip("/").rsplit("/", 1)[-1]
    repository = name if name.startswith("Qwen3-TTS") else "Qwen3-TTS-12Hz-..."
    raise BundleError(
        f"{directory} has the onnx-community layout, which needs files of the checkpoint; {best} "
        f"has no {', '.join(missing[best])}. Put {', '.join(CHECKPOINT_FILES)} from "
        f"https://huggingface.co/Qwen/{repository} into {directory.parent}."
    )


def _read_json(path: Path, error_class: type[BundleError] = BundleError) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise error_class(f"{path} cannot be read ({error}); fetch it again.") from error
    if not isinstance(values, dict):
        raise error_class(f"{path} is not a JSON object; fetch it again.")
    return values


class _Graph:
    """An opened graph.

    Variants of a bundle differ in the types of their inputs and in the names of their outputs
    (``logits_Q4``), so types are converted here and outputs are told apart by position.
    """

    def __init__(self, path: Path, num_threads: int, inputs: Sequence[str]) -> None:
        self._path = path
        self._session = graphs.open_session(path, num_threads)
        graphs.check_graph_io(self._session, path, inputs=inputs, outputs=[])
        self._shapes = {value.name: value.shape for value in self._session.get_inputs()}
        self.types = {
            value.name: _TYPES.get(value.type, np.float32) for value in self._session.get_inputs()
        }
        self.num_outputs = len(self._session.get_outputs())

    def size(self, name: str, axis: int) -> int | None:
        """Return the size of an input along an axis; None where the graph leaves it open."""
        size = self._shapes[name][axis]
        return size if isinstance(size, int) and size > 0 else None

    def check_size(self, name: str, axis: int, expected: int) -> None:
        """Check the size of an input along an axis, unless the graph leaves it open."""
        if self.size(name, axis) not in (None, expected):
            raise self.error(
                f"takes {name!r} of size {self.size(name, axis)}, but the model's configuration "
                f"says {expected}"
            )

    def run(self, **feeds: AnyArray) -> list[AnyArray]:
        """Run the graph and return all outputs."""
        typed = {name: np.ascontiguousarray(feeds[name], self.types[name]) for name in feeds}
        result: list[AnyArray] = self._session.run(None, typed)
        return result

    def run_rows(self, **feeds: AnyArray) -> Float32Array:
        """Return the first output of a batch, row by row where the graph takes a single row."""
        first, rows = next(iter(feeds.items()))
        if self.size(first, 0) is None:
            return _as_float32(self.run(**feeds)[0])
        single = [
            self.run(**{name: array[row : row + 1] for name, array in feeds.items()})[0]
            for row in range(len(rows))
        ]
        return _as_float32(np.concatenate(single))

    def error(self, problem: str) -> GraphInterfaceError:
        """Return an error about this graph; ``problem`` continues "FILE ..."."""
        return GraphInterfaceError(
            f"{self._path} {problem}: this program does not know such a graph of the "
            "onnx-community layout. Fetch the bundle again, or build one from the checkpoint "
            "(wyoming-qwen3tts build)."
        )


class _GraphEmbeddings:
    """Embeddings that are graphs: text with its projection, codec rows, sums of frames."""

    def __init__(self, text: _Graph, codec: _Graph, residual: _Graph) -> None:
        self._text, self._codec, self._residual = text, codec, residual

    def text(self, ids: Sequence[int]) -> Float32Array:
        return _as_float32(self._text.run(text_ids=np.asarray([ids], np.int64))[0][0])

    def codec(self, ids: Sequence[int]) -> Float32Array:
        return _as_float32(self._codec.run(codec_ids=np.asarray([ids], np.int64))[0][0])

    def frames(self, codes: Int64Array) -> Float32Array:
        return self._residual.run_rows(codec_ids=codes)


class _ConcatenatingTalker:
    """``talker_cache.onnx``: takes a lane's past without gaps, returns it with new positions.

    A lane's past has gaps in the cache's blocks, so each step copies it (45 MB at 200 positions of
    the 0.6B model). Lanes run one after the other, because the graph knows one length for all.
    """

    def __init__(self, graph: _Graph, facts: ModelFacts) -> None:
        # The exporter named the cache by accident; only the order is reliable.
        past = [name for name in graph.types if name not in _TALKER_INPUTS]
        if not past or len(past) % 2 or len(past) != graph.num_outputs - 2:
            raise graph.error(
                f"takes {len(past)} past keys and values and has {graph.num_outputs} outputs"
            )
        sizes = {(graph.size(name, 1), graph.size(name, 3)) for name in past}
        num_heads, head_size = sizes.pop()
        if num_heads is None or head_size is None or sizes:
            raise graph.error("does not say how wide its keys and values are")
        graph.check_size("inputs_embeds", 2, facts.hidden_size)
        self._graph = graph
        self._past_names = past
        self._num_heads, self._head_size = num_heads, head_size
        self._facts = facts
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
        # The graph's order: key and value of each layer.
        blocks = [block for pair in zip(cache.keys, cache.values, strict=True) for block in pair]
        logits, hidden, *present = self._graph.run(
            inputs_embeds=embeddings[None],
            position_ids=np.broadcast_to(np.arange(past, length), (_ROPE_AXES, 1, length - past)),
            attention_mask=np.ones((1, length), np.int64),
            **dict(zip(self._past_names, self._copy_past(blocks, lane, past), strict=True)),
        )
        for block, grown in zip(blocks, present, strict=True):
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
        lane_size = blocks[0][0].size
        if not self._scratch or len(self._scratch[0]) < lane_size:
            self._scratch = [np.empty(lane_size, block.dtype) for block in blocks]
        views = [scratch[: math.prod(shape)].reshape(shape) for scratch in self._scratch]
        for view, block in zip(views, blocks, strict=True):
            np.copyto(view, block[lane : lane + 1, :, :length])
        return views


class _TeacherForcedPredictor:
    """``code_predictor.onnx``: scores all groups in each run, without a cache.

    A group's scores depend on the codes before it only, so codes that are not known yet are zeros.
    """

    def __init__(self, graph: _Graph, facts: ModelFacts) -> None:
        graph.check_size("talker_hidden", 1, facts.hidden_size)
        graph.check_size("codec_ids", 1, facts.num_code_groups)
        self._graph = graph
        self._num_groups = facts.num_code_groups

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        codes = np.zeros((len(code0), self._num_groups), np.int64)
        codes[:, 0] = code0
        failed = np.zeros(len(code0), np.bool_)
        controls = [(float(t), int(k), float(p)) for t, k, p in zip(*sampling[1:], strict=True)]
        for group in range(1, self._num_groups):
            scores = self.group_logits(hidden, codes)[:, group - 1]
            for lane, uniform in enumerate(sampling.uniforms[:, group - 1].tolist()):
                options = SamplingOptions(uniform > 0, *controls[lane])
                processed = process_logits(scores[lane], frozenset(), options)
                try:
                    codes[lane, group] = sample(processed, uniform)
                except SynthesisError:
                    failed[lane] = True
        codes[failed] = -1
        return codes[:, 1:]

    def group_logits(self, hidden: Float32Array, codes: Int64Array) -> Float32Array:
        """Return scores (B, G - 1, C) of codes (B, G)."""
        return self._graph.run_rows(talker_hidden=hidden, codec_ids=codes)


class _WindowState(NamedTuple):
    """What the decoder knows of an utterance; never changed in place."""

    position: int
    """Frames since the first window began."""
    codes: Int64Array
    """(n, G): the last of them."""


class WindowedDecoder:
    """``tok_decoder.onnx``: decodes windows of 25 frames without state.

    Window w begins with frame 12 w, and a frame is taken from the first window that reaches it. So
    its samples depend on the frames before it only, whatever the cut into calls, and frames behind
    the first window have at least 13 frames of left context, the reach of the convolutions. Seams
    are 0.96 s apart; 25 / 12 = 2.08 frames are decoded for each new one.

    Signal-to-noise ratio of the frames behind a seam, random weights: 42 dB in the tiny model
    (attention over 9 frames), 13 dB with the published dimensions (over 72 frames).
    """

    chunk_ramp: tuple[int, ...] = (1, 4, 8, _HOP_FRAMES)
    """Calls that need one run each: the first three add up to 13, later ones end with windows."""

    def __init__(self, graph: _Graph, facts: ModelFacts) -> None:
        """Wrap the graph."""
        graph.check_size("audio_codes", 1, _WINDOW_FRAMES)
        graph.check_size("audio_codes", 2, facts.num_code_groups)
        self._graph = graph
        self._num_groups = facts.num_code_groups
        self._samples_per_frame = facts.samples_per_frame

    def initial_state(self) -> _WindowState:
        """Return the state before the first frame."""
        return _WindowState(0, np.zeros((0, self._num_groups), np.int64))

    def decode(self, codes: Int64Array, state: _WindowState) -> tuple[Float32Array, _WindowState]:
        """Decode codes (F, G), F >= 1, into samples (S,) in [-1, 1] and the next state."""
        known = np.concatenate([state.codes, codes])
        first_known = state.position - len(state.codes)
        end = state.position + len(codes)
        frame, pieces = state.position, []
        while frame < end:
            # The first window that reaches the frame.
            start = max(0, -(-(frame + 1 - _WINDOW_FRAMES) // _HOP_FRAMES)) * _HOP_FRAMES
            stop = min(start + _WINDOW_FRAMES, end)
            samples = self._run(known[start - first_known : stop - first_known])
            pieces.append(samples[(frame - start) * self._samples_per_frame :])
            frame = stop
        # The next frame's window begins at most this many frames before it.
        return np.concatenate(pieces), _WindowState(end, known[-(_WINDOW_FRAMES - 1) :])

    def advance(self, codes: Int64Array, state: _WindowState) -> _WindowState:
        """Return the state after codes (F, G), F >= 1; nothing is decoded.

        Windows begin again: the last 12 frames are the left context of the first one.
        """
        known = np.concatenate([state.codes, codes])[-_HOP_FRAMES:]
        return _WindowState(len(known), known)

    def _run(self, codes: Int64Array) -> Float32Array:
        """Decode up to a window of codes (F, G) into samples (F * samples per frame,)."""
        padded = np.zeros((1, _WINDOW_FRAMES, self._num_groups), np.int64)
        padded[0, : len(codes)] = codes
        samples = _as_float32(self._graph.run(audio_codes=padded)[0]).reshape(-1)
        if len(samples) != _WINDOW_FRAMES * self._samples_per_frame:
            raise self._graph.error(
                f"makes {len(samples)} samples of {_WINDOW_FRAMES} frames, but the model's "
                f"configuration says {self._samples_per_frame} per frame"
            )
        return samples[: len(codes) * self._samples_per_frame]


def _encode_codes(
    open_graph: Callable[[], _Graph], facts: ModelFacts, samples: Float32Array
) -> Int64Array:
    """Return codes (F, G) of mono samples (S,), one second (12.5 frames) at a time.

    Windows lie on the grid of frames, only whole frames are kept, and all but the first begin with
    9 frames of left context. The number of frames is exact, and so are the codes of the first
    window. Later ones agree in 88 % to 96 % of group 0 (random tiny weights), since the exact
    encoder attends over everything before.
    """
    graphs.check_clip(samples, 1)
    _LOGGER.warning(
        "Clip encoder: this bundle encodes in windows of a second, so the codes are approximate; "
        "a bundle built from the checkpoint encodes exactly"
    )
    graph, per_frame = open_graph(), facts.samples_per_frame
    graph.check_size("audio", 2, _ENCODER_SAMPLES)
    num_frames = -(-len(samples) // per_frame)
    pieces, frame = [], 0
    while frame < num_frames:
        start = max(0, frame - _ENCODER_CONTEXT_FRAMES)
        part = samples[start * per_frame :][:_ENCODER_SAMPLES]
        audio = np.pad(part, (0, _ENCODER_SAMPLES - len(part)))[None, None]
        codes = np.asarray(graph.run(audio=audio)[0], np.int64)[0]
        stop = min(start + _ENCODER_SAMPLES // per_frame, num_frames)
        pieces.append(codes[frame - start : stop - start, : facts.num_code_groups])
        frame = stop
    return np.concatenate(pieces)


def _embed_speaker(open_graph: Callable[[], _Graph], samples: Float32Array) -> Float32Array:
    """Return the x-vector (D,) of mono samples (S,)."""
    graphs.check_clip(samples, graphs.MIN_SPEAKER_SAMPLES)
    return _as_float32(open_graph().run(audio=samples[None])[0]).reshape(-1)


def _as_float32(array: AnyArray) -> Float32Array:
    return np.asarray(array, np.float32)
