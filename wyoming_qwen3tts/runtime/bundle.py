"""A bundle directory -> an opened :class:`SpeechModel`."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import onnxruntime as ort

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError, ChecksumError
from wyoming_qwen3tts.runtime.code_predictor import OnnxCodePredictor
from wyoming_qwen3tts.runtime.codec import OnnxCodecDecoder, OnnxCodecEncoder
from wyoming_qwen3tts.runtime.embeddings import TableEmbeddings
from wyoming_qwen3tts.runtime.manifest import Manifest, read_manifest
from wyoming_qwen3tts.runtime.onnx_community import is_published_bundle, open_published_bundle
from wyoming_qwen3tts.runtime.session import CPU_PROVIDER, open_session
from wyoming_qwen3tts.runtime.speaker_encoder import OnnxSpeakerEncoder
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.runtime.talker import OnnxTalker
from wyoming_qwen3tts.runtime.tokenizer import load_tokenizer


@dataclass(frozen=True)
class SessionOptions:
    """How graphs are run."""

    num_threads: int
    """Size of the thread pool that all graphs of the process share."""
    providers: tuple[str, ...] = (CPU_PROVIDER,)
    """onnxruntime execution providers, in order of preference."""


SharedDecoders = MutableMapping[str, OnnxCodecDecoder]
"""Hash of the decoder's files -> the opened decoder; all published models have the same one."""


def shared_decoders() -> SharedDecoders:
    """Return an empty table that lets go of a decoder when the last model with it is closed."""
    return WeakValueDictionary()


def open_bundle(
    directory: Path, options: SessionOptions, decoders: SharedDecoders | None = None
) -> SpeechModel:
    """Open a bundle, of our own layout or of the published one.

    The encoders of a Base model are opened for each clip and closed again: a clip is encoded once
    and remembered, and their weights are a third of the model's memory.

    Raises:
        BundleError: A file is missing, of the wrong size, or not what the runtime needs; the
            message names the file and says what to do.
    """
    if is_published_bundle(directory):
        return open_published_bundle(
            directory, num_threads=options.num_threads, providers=options.providers
        )
    manifest = read_manifest(directory)
    check_sizes(directory, manifest)
    facts = manifest.facts
    opener = _ComponentOpener(directory, manifest, options)
    return SpeechModel(
        name=manifest.name,
        facts=facts,
        tokenizer=load_tokenizer(directory),
        embeddings=TableEmbeddings(directory),
        talker=OnnxTalker(*opener.open("talker"), max_positions=manifest.talker.max_positions),
        code_predictor=OnnxCodePredictor(
            *opener.open("code_predictor"),
            num_code_groups=facts.num_code_groups,
            codebook_size=facts.codebook_size,
        ),
        codec_decoder=opener.decoder({} if decoders is None else decoders),
        codec_encoder=_TransientCodecEncoder(opener) if opener.has("codec_encoder") else None,
        speaker_encoder=_TransientSpeakerEncoder(opener) if opener.has("speaker_encoder") else None,
    )


def check_sizes(directory: Path, manifest: Manifest) -> None:
    """Check that every file of a bundle is there with the stated size.

    Raises:
        BundleError: A file is missing.
        ChecksumError: A file has another size.
    """
    for file in manifest.files:
        path = directory / file.path
        try:
            size = path.stat().st_size
        except OSError as error:
            raise BundleError(
                f"{path} is missing ({error.strerror}). Build or fetch the bundle again."
            ) from error
        if size != file.bytes:
            raise ChecksumError(
                f"{path} has {size} bytes, the manifest states {file.bytes}. "
                "Build or fetch the bundle again."
            )


class _ComponentOpener:
    """Opens the graphs of one bundle."""

    def __init__(self, directory: Path, manifest: Manifest, options: SessionOptions) -> None:
        self._directory = directory
        self._hashes = {file.path: file.sha256 for file in manifest.files}
        self._options = options

    def has(self, component: str) -> bool:
        """Whether the bundle has the component."""
        return f"{component}.onnx" in self._hashes

    def decoder(self, decoders: SharedDecoders) -> OnnxCodecDecoder:
        """Return the codec decoder, the one in ``decoders`` if its files are the same."""
        names = ("codec_decoder.onnx", "codec_decoder.onnx.data")
        key = ":".join(self._hashes.get(name, "") for name in names)
        decoder = decoders.get(key)
        if decoder is None:
            decoder = decoders[key] = OnnxCodecDecoder(*self.open("codec_decoder"))
        return decoder

    def open(self, component: str) -> tuple[ort.InferenceSession, Path]:
        """Open a component; return its session and its path, for messages."""
        path = self._directory / f"{component}.onnx"
        session = open_session(
            path, num_threads=self._options.num_threads, providers=self._options.providers
        )
        return session, path


class _TransientCodecEncoder:
    """A codec encoder whose session lives for one clip."""

    def __init__(self, opener: _ComponentOpener) -> None:
        self._opener = opener

    def encode(self, samples: Float32Array) -> Int64Array:
        return OnnxCodecEncoder(*self._opener.open("codec_encoder")).encode(samples)


class _TransientSpeakerEncoder:
    """A speaker encoder whose session lives for one clip."""

    def __init__(self, opener: _ComponentOpener) -> None:
        self._opener = opener

    def embed(self, samples: Float32Array) -> Float32Array:
        return OnnxSpeakerEncoder(*self._opener.open("speaker_encoder")).embed(samples)
