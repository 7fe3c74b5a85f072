"""A directory of the published layout -> an opened :class:`SpeechModel`."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from wyoming_qwen3tts.errors import BundleError
from wyoming_qwen3tts.runtime.onnx_community.code_predictor import PublishedCodePredictor
from wyoming_qwen3tts.runtime.onnx_community.codec import (
    PublishedCodecDecoder,
    PublishedCodecEncoder,
    PublishedSpeakerEncoder,
)
from wyoming_qwen3tts.runtime.onnx_community.embeddings import PublishedEmbeddings
from wyoming_qwen3tts.runtime.onnx_community.files import PublishedFiles, read_published_files
from wyoming_qwen3tts.runtime.onnx_community.graph import PublishedGraph
from wyoming_qwen3tts.runtime.onnx_community.talker import TALKER_INPUTS, PublishedTalker
from wyoming_qwen3tts.runtime.session import CPU_PROVIDER, open_session
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.runtime.tokenizer import load_tokenizer

# Component -> inputs that its graph must have.
_INPUTS: Final = {
    "text_embed": ("text_ids",),
    "codec_embed": ("codec_ids",),
    "talker_cache": TALKER_INPUTS,
    "code_predictor": ("talker_hidden", "codec_ids"),
    "residual_embed": ("codec_ids",),
    "tok_decoder": ("audio_codes",),
    "tok_encoder": ("audio",),
    "speaker_encoder": ("audio",),
}
_CLONING: Final = ("tok_encoder", "speaker_encoder")


def open_published_bundle(
    directory: Path,
    *,
    num_threads: int,
    providers: Collection[str] = (CPU_PROVIDER,),
    checkpoint_dir: Path | None = None,
) -> SpeechModel:
    """Open a bundle of the published layout.

    As with our own bundles, the encoders of a Base model are opened for each clip only.

    Args:
        directory: The bundle, such as ``.../cpu_int4``.
        num_threads: Size of the thread pool that all graphs of the process share.
        providers: onnxruntime execution providers, in order of preference.
        checkpoint_dir: Where the checkpoint's own files are (config.json, generation_config.json,
            tokenizer files); None looks in the bundle and in the folder above.

    Raises:
        BundleError: A file is missing, or not what the runtime needs; the message names it and says
            what to do.
    """
    files = read_published_files(directory, checkpoint_dir)
    facts = files.facts
    opener = _GraphOpener(files, num_threads, providers)
    required = [name for name in _INPUTS if name not in _CLONING]
    opener.check(required)
    can_clone = facts.model_type == "base"
    return SpeechModel(
        name=files.name,
        facts=facts,
        tokenizer=load_tokenizer(files.checkpoint_directory),
        embeddings=PublishedEmbeddings(
            opener.open("text_embed"),
            opener.open("codec_embed"),
            opener.open("residual_embed"),
            facts,
        ),
        talker=PublishedTalker(opener.open("talker_cache"), facts),
        code_predictor=PublishedCodePredictor(opener.open("code_predictor"), facts),
        codec_decoder=PublishedCodecDecoder(opener.open("tok_decoder"), facts),
        codec_encoder=PublishedCodecEncoder(lambda: opener.open("tok_encoder"), facts)
        if can_clone and opener.has("tok_encoder")
        else None,
        speaker_encoder=PublishedSpeakerEncoder(lambda: opener.open("speaker_encoder"), facts)
        if can_clone and opener.has("speaker_encoder")
        else None,
    )


class _GraphOpener:
    """Opens the graphs of one bundle."""

    def __init__(self, files: PublishedFiles, num_threads: int, providers: Collection[str]) -> None:
        self._files = files
        self._num_threads = num_threads
        self._providers = providers

    def has(self, component: str) -> bool:
        """Whether the bundle has the component."""
        return component in self._files.graphs

    def check(self, components: Sequence[str]) -> None:
        """Check that the bundle has these components, before any of them is loaded.

        Raises:
            BundleError: Names those that are missing.
        """
        missing = [name for name in components if not self.has(name)]
        if missing:
            raise BundleError(
                f"{self._files.directory} has no {', '.join(missing)}: it is incomplete, or from "
                "before the talker had a cache. Fetch a newer bundle."
            )
        for name in components:
            path = self._path(name)
            if not path.is_file():
                raise BundleError(f"{path} is missing. Fetch the bundle again.")

    def open(self, component: str) -> PublishedGraph:
        """Open a component's graph."""
        path = self._path(component)
        session = open_session(path, num_threads=self._num_threads, providers=self._providers)
        num_outputs = 2 if component == "talker_cache" else 1
        return PublishedGraph(session, path, inputs=_INPUTS[component], num_outputs=num_outputs)

    def _path(self, component: str) -> Path:
        return self._files.directory / self._files.graphs[component]
