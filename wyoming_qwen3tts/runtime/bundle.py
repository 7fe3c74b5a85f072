"""A bundle directory -> an opened :class:`SpeechModel`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.errors import BundleError, ChecksumError
from wyoming_qwen3tts.runtime.embeddings import TableEmbeddings
from wyoming_qwen3tts.runtime.graphs import (
    MIN_SPEAKER_SAMPLES,
    OnnxCodecDecoder,
    OnnxCodePredictor,
    OnnxTalker,
    clip_state,
    encode_clip,
)
from wyoming_qwen3tts.runtime.manifest import Manifest, read_manifest
from wyoming_qwen3tts.runtime.onnx_community import is_onnx_community, open_onnx_community
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer

SharedDecoders = WeakValueDictionary[str, OnnxCodecDecoder]
"""Hash of the decoder's files -> the opened decoder; all published models have the same one."""


def open_bundle(
    directory: Path, num_threads: int, decoders: SharedDecoders | None = None
) -> SpeechModel:
    """Open a bundle of either layout; raise a BundleError if a file is missing or does not fit.

    ``decoders`` are the codec decoders of other opened models, to share one with the same files.
    """
    if is_onnx_community(directory):
        return open_onnx_community(directory, num_threads)
    manifest = read_manifest(directory)
    check_sizes(directory, manifest)
    hashes = {file.path: file.sha256 for file in manifest.files}
    decoders = SharedDecoders() if decoders is None else decoders
    key = f"{hashes.get('codec_decoder.onnx')}:{hashes.get('codec_decoder.onnx.data')}"
    decoder = decoders.get(key)
    if decoder is None:
        decoder = decoders[key] = OnnxCodecDecoder(directory / "codec_decoder.onnx", num_threads)

    embeddings = TableEmbeddings(directory)
    embeddings.check(manifest.facts)

    def encoder(name: str, output: str, min_samples: int) -> Callable[[Float32Array], Any] | None:
        if name not in hashes:
            return None
        return partial(encode_clip, directory / name, num_threads, output, min_samples)

    return SpeechModel(
        name=manifest.name,
        facts=manifest.facts,
        tokenizer=BpeTokenizer(directory),
        embeddings=embeddings,
        talker=OnnxTalker(directory / "talker.onnx", num_threads, manifest.facts.max_positions),
        code_predictor=OnnxCodePredictor(directory / "code_predictor.onnx", num_threads),
        codec_decoder=decoder,
        codec_encoder=encoder("codec_encoder.onnx", "codes", 1),
        speaker_encoder=encoder("speaker_encoder.onnx", "x_vector", MIN_SPEAKER_SAMPLES),
        clip_state=partial(clip_state, directory / "codec_decoder.onnx", num_threads),
        load_state=decoder.load_state,
        encoder_id=manifest.encoder_id,
    )


def check_sizes(directory: Path, manifest: Manifest) -> None:
    """Check that no file is missing (BundleError) or of another size (ChecksumError)."""
    for file in manifest.files:
        path = directory / file.path
        if not path.is_file():
            raise BundleError(f"{path} is missing. Build or fetch the bundle again.")
        if (size := path.stat().st_size) != file.bytes:
            problem = f"{path} has {size} bytes, the manifest states {file.bytes}"
            raise ChecksumError(f"{problem}. Build or fetch the bundle again.")
