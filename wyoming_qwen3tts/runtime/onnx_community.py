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
from typing import Any, Final, TypeAlias

import numpy as np

from wyoming_qwen3tts import __version__, errors
from wyoming_qwen3tts.arrays import AnyArray, Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.runtime import graphs, manifest
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.runtime.manifest import Manifest, ModelFacts
from wyoming_qwen3tts.runtime.sampling import SamplingOptions, process_logits, sample
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling, SpeechModel, TalkerOutput
from wyoming_qwen3tts.runtime.tokenizer import TOKENIZER_FILES, BpeTokenizer, read_json_object

_LOGGER = logging.getLogger(__name__)

# Files of the checkpoint that must be there.
CHECKPOINT_FILES: Final = ("config.json", "generation_config.json", *TOKENIZER_FILES)
# The codec is the same in all published checkpoints, so its configuration may be absent.
_PUBLISHED_CODEC: Final[Any] = {"output_sample_rate": 24_000, "decode_upsample_rate": 1920}
_TALKER_INPUTS: Final = ("inputs_embeds", "position_ids", "attention_mask")
_TYPES: Final[dict[str, type[np.generic]]] = {
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
# The three axes of the official rotary embedding always agree for speech.
_ROPE_AXES: Final = 3
_WINDOW_FRAMES: Final = 25
_HOP_FRAMES: Final = 12
# Frames since the first window began, and the codes (n, G) of the last of them.
_WindowState: TypeAlias = tuple[int, Int64Array]
_ENCODER_SAMPLES: Final = 24_000
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
    own, files, checkpoint = _read_files(directory)
    facts = own.facts

    def graph(component: str, *inputs: str) -> _Graph:
        path = directory / files.get(component, "")
        if not path.is_file():
            missing = files.get(component, component)
            raise BundleError(f"{directory} has no {missing}. Fetch the bundle again.")
        return _Graph(path, num_threads, inputs)

    def encoder(component: str) -> Callable[[], _Graph]:
        return partial(_Graph, directory / files[component], num_threads, ("audio",))

    encoders = files.keys() if facts.model_type == "base" else ()
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
            graph("code_predictor", "talker_hidden", "codec_ids"), facts
        ),
        codec_decoder=_WindowedDecoder(graph("tok_decoder", "audio_codes"), facts),
        # As with our own bundles, the encoders are opened for each clip and closed again.
        codec_encoder=partial(_encode_codes, encoder("tok_encoder"), facts)
        if "tok_encoder" in encoders
        else None,
        speaker_encoder=partial(_embed_speaker, encoder("speaker_encoder"))
        if "speaker_encoder" in encoders
        else None,
        encoder_id=own.encoder_id,
    )


def _read_files(directory: Path) -> tuple[Manifest, dict[str, str], Path]:
    """Return a manifest, component -> file name, and the directory of the checkpoint's files."""
    path = directory / manifest.MANIFEST_NAME
    values = read_json_object(path)
    try:
        # Only the last part, so that no name leads out of the bundle.
        files = {key: Path(entry["filename"]).name for key, entry in values["sub_models"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise errors.ManifestError(
            f"{path} does not say which file holds which graph. Fetch the bundle again."
        ) from error
    model_id = str(values.get("model_id", ""))
    name = model_id.rstrip("/").rsplit("/", 1)[-1]
    checkpoint = _find_checkpoint(directory, name)
    config = read_json_object(checkpoint / "config.json")
    codec_path = checkpoint / "speech_tokenizer" / "config.json"
    codec_config = read_json_object(codec_path) if codec_path.is_file() else _PUBLISHED_CODEC
    generation = read_json_object(checkpoint / "generation_config.json")
    try:
        facts = manifest.facts_from_checkpoint(config, codec_config, generation)
        talker = config["talker_config"]
        layers, heads = talker["num_hidden_layers"], talker["num_key_value_heads"]
        positions = facts.max_positions
        layout = manifest.TalkerLayout(layers, heads, talker["head_dim"], positions, "float32")
    except (errors.CheckpointError, KeyError) as error:
        raise BundleError(f"{checkpoint} does not fit: {error}") from error
    if "qwen3-tts" not in name.lower():
        name = f"Qwen3-TTS-12Hz-{facts.model_size}-{facts.model_type.replace('_', '')}"
    paths = [file for file in sorted(directory.iterdir()) if file.is_file() and file != path]
    own = Manifest(
        format_version=manifest.FORMAT_VERSION,
        name=name.lower(),
        device="cpu",
        recipe=directory.name.rsplit("_", 1)[-1],
        precision={},
        facts=facts,
        talker=layout,
        source=manifest.BundleSource(repo=model_id, revision=None, model_sha256=""),
        builder_version=__version__,
        files=tuple(map(_fingerprint, paths)),
        quantization=(),
    )
    return own, files, checkpoint


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
    repository = name if name.startswith("Qwen3-TTS") else "Qwen3-TTS-12Hz-..."
    raise BundleError(
        f"{directory} has the onnx-community layout, which needs files of the checkpoint; "
        f"{directory.parent} has no {', '.join(missing)}. Put {', '.join(CHECKPOINT_FILES)} from "
        f"https://huggingface.co/Qwen/{repository} there."
    )


class _Graph:
    """An opened graph; variants differ in types of inputs and names of outputs (``logits_Q4``)."""

    def __init__(self, path: Path, num_threads: int, inputs: Sequence[str]) -> None:
        self._path = path
        self._session = graphs.open_session(path, num_threads)
        graphs.check_graph_io(self._session, path, inputs=inputs, outputs=[])
        self._shapes = {value.name: value.shape for value in self._session.get_inputs()}
        self.types = {
            value.name: _TYPES.get(value.type, np.float32) for value in self._session.get_inputs()
        }
        self.num_outputs = len(self._session.get_outputs())

    def size(self, name: str, axis: int) -> Any:
        """Return the size of an input along an axis (int), or None where it is open."""
        size = self._shapes[name][axis]
        return size if isinstance(size, int) and size > 0 else None

    def check_size(self, name: str, axis: int, expected: int) -> None:
        """Check the size of an input along an axis, unless the graph leaves it open."""
        if (size := self.size(name, axis)) not in (None, expected):
            raise self.error(
                f"takes {name!r} of size {size}, but the model's configuration says {expected}"
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

    def error(self, problem: str) -> errors.GraphInterfaceError:
        """Return an error about this graph; ``problem`` continues "FILE ..."."""
        return errors.GraphInterfaceError(
            f"{self._path} {problem}. Fetch the bundle again, or build one from the checkpoint."
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
    """``talker_cache.onnx``: takes a lane's past without gaps, so each step copies it.

    Lanes run one after the other, because the graph knows one length for all.
    """

    def __init__(self, graph: _Graph, facts: ModelFacts) -> None:
        # The exporter named the cache by accident; its order is that of KVCache.blocks.
        past = [name for name in graph.types if name not in _TALKER_INPUTS]
        sizes = {(graph.size(name, 1), graph.size(name, 3)) for name in past}
        if len(sizes) != 1 or len(past) % 2 or len(past) != graph.num_outputs - 2:
            raise graph.error(f"has {len(past)} past keys and values of widths {sizes}")
        graph.check_size("inputs_embeds", 2, facts.hidden_size)
        self._num_heads, self._head_size = sizes.pop()
        self._graph, self._facts, self._past_names = graph, facts, past
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

    def __init__(self, graph: _Graph, facts: ModelFacts) -> None:
        graph.check_size("codec_ids", 1, facts.num_code_groups)
        self._graph, self._num_groups = graph, facts.num_code_groups

    def predict(
        self, hidden: Float32Array, code0: Int64Array, sampling: PredictorSampling
    ) -> Int64Array:
        codes = np.zeros((len(code0), self._num_groups), np.int64)
        codes[:, 0] = code0
        failed = np.zeros(len(code0), np.bool_)
        controls = [(float(t), int(k), float(p)) for t, k, p in zip(*sampling[1:], strict=True)]
        for group in range(1, self._num_groups):
            scores = self._graph.run_rows(talker_hidden=hidden, codec_ids=codes)
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

    def __init__(self, graph: _Graph, facts: ModelFacts) -> None:
        graph.check_size("audio_codes", 1, _WINDOW_FRAMES)
        self._graph, self._num_groups = graph, facts.num_code_groups
        self._samples_per_frame = facts.samples_per_frame

    def initial_state(self) -> _WindowState:
        return 0, np.zeros((0, self._num_groups), np.int64)

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
            pieces.append(samples[(frame - start) * self._samples_per_frame :])
            frame = stop
        # The next frame's window begins at most this many frames before it.
        return np.concatenate(pieces), (end, known[-(_WINDOW_FRAMES - 1) :])

    def advance(self, codes: Int64Array, state: _WindowState) -> _WindowState:
        # Windows begin again: the last 12 frames are the left context of the first one.
        known = np.concatenate([state[1], codes])[-_HOP_FRAMES:]
        return len(known), known

    def _run(self, codes: Int64Array) -> Float32Array:
        """Decode up to a window of codes (F, G) into samples (F * samples per frame,)."""
        padded = np.zeros((1, _WINDOW_FRAMES, self._num_groups), np.int64)
        padded[0, : len(codes)] = codes
        samples = _as_float32(self._graph.run(audio_codes=padded)[0]).reshape(-1)
        if len(samples) != _WINDOW_FRAMES * self._samples_per_frame:
            raise self._graph.error(f"makes {len(samples)} samples of {_WINDOW_FRAMES} frames")
        return samples[: len(codes) * self._samples_per_frame]


def _encode_codes(
    open_graph: Callable[[], _Graph], facts: ModelFacts, samples: Float32Array
) -> Int64Array:
    """Return codes (F, G) of mono samples (S,); approximate after the first second.

    Each further window has 9 frames of left context; the exact encoder attends over everything.
    """
    graphs.check_clip(samples, 1)
    _LOGGER.warning("Clip encoder: approximate; a bundle built from the checkpoint is exact")
    graph, per_frame = open_graph(), facts.samples_per_frame
    graph.check_size("audio", 2, _ENCODER_SAMPLES)
    num_frames, whole_frames = -(-len(samples) // per_frame), _ENCODER_SAMPLES // per_frame
    last_start = max(0, num_frames - _ENCODER_CONTEXT_FRAMES - 1)
    pieces = []
    for start in range(0, last_start + 1, whole_frames - _ENCODER_CONTEXT_FRAMES):
        part = samples[start * per_frame :][:_ENCODER_SAMPLES]
        audio = np.pad(part, (0, _ENCODER_SAMPLES - len(part)))[None, None]
        codes = np.asarray(graph.run(audio=audio)[0], np.int64)[0, :whole_frames]
        pieces.append(codes[_ENCODER_CONTEXT_FRAMES if start else 0 :, : facts.num_code_groups])
    return np.concatenate(pieces)[:num_frames]


def _embed_speaker(open_graph: Callable[[], _Graph], samples: Float32Array) -> Float32Array:
    """Return the x-vector (D,) of mono samples (S,)."""
    graphs.check_clip(samples, graphs.MIN_SPEAKER_SAMPLES)
    return _as_float32(open_graph().run(audio=samples[None])[0]).reshape(-1)


def _as_float32(array: AnyArray) -> Float32Array:
    return np.asarray(array, np.float32)
