"""Small bundles in the published layout, written from the tiny checkpoints."""

import shutil
from pathlib import Path

from tests.support.onnx_community_writer import PublishedOptions, write_published_bundle
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.runtime.onnx_community import open_onnx_community
from wyoming_qwen3tts.runtime.speech_model import SpeechModel

NUM_THREADS = 2
# What the loader needs of a checkpoint, apart from the configuration of the codec.
CHECKPOINT_FILES = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
)


def write_small_published_bundle(
    checkpoint: Path, directory: Path, options: PublishedOptions | None = None
) -> Path:
    """Write graphs and manifest into ``directory``, the checkpoint's files into the one above."""
    write_published_bundle(Checkpoint.open(checkpoint), directory, options)
    for name in CHECKPOINT_FILES:
        shutil.copyfile(checkpoint / name, directory.parent / name)
    return directory


def open_small(directory: Path) -> SpeechModel:
    return open_onnx_community(directory, NUM_THREADS)
