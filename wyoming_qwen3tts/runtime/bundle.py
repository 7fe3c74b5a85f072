"""A bundle directory -> an opened :class:`SpeechModel`."""

from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from wyoming_qwen3tts.errors import BundleError, ChecksumError
from wyoming_qwen3tts.runtime.embeddings import TableEmbeddings
from wyoming_qwen3tts.runtime.graphs import (
    OnnxCodecDecoder,
    OnnxCodePredictor,
    OnnxTalker,
    embed_speaker,
    encode_codes,
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
    """Open a bundle, of our own layout or of the onnx-community one.

    Args:
        directory: The bundle.
        num_threads: Size of the thread pool that all graphs of the process share.
        decoders: Codec decoders of other opened models, to share one with the same files.

    Raises:
        BundleError: A file is missing, has another size, or does not fit; the message names the
            file and says what to do.
    """
    if is_onnx_community(directory):
        return open_onnx_community(directory, num_threads)
    manifest = read_manifest(directory)
    check_sizes(directory, manifest)
    facts = manifest.facts
    hashes = {file.path: file.sha256 for file in manifest.files}
    decoders = SharedDecoders() if decoders is None else decoders
    key = f"{hashes.get('codec_decoder.onnx')}:{hashes.get('codec_decoder.onnx.data')}"
    decoder = decoders.get(key)
    if decoder is None:
        decoder = decoders[key] = OnnxCodecDecoder(directory / "codec_decoder.onnx", num_threads)
    return SpeechModel(
        name=manifest.name,
        facts=facts,
        tokenizer=BpeTokenizer(directory),
        embeddings=TableEmbeddings(directory),
        talker=OnnxTalker(directory / "talker.onnx", num_threads, manifest.talker.max_positions),
        code_predictor=OnnxCodePredictor(
            directory / "code_predictor.onnx",
            num_threads,
            num_code_groups=facts.num_code_groups,
            codebook_size=facts.codebook_size,
        ),
        codec_decoder=decoder,
        codec_encoder=partial(encode_codes, directory / "codec_encoder.onnx", num_threads)
        if "codec_encoder.onnx" in hashes
        else None,
        speaker_encoder=partial(embed_speaker, directory / "speaker_encoder.onnx", num_threads)
        if "speaker_encoder.onnx" in hashes
        else None,
        encoder_id=manifest.encoder_id,
    )


def check_sizes(directory: Path, manifest: Manifest) -> None:
    """Check that every file of a bundle has the size that the manifest states.

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
