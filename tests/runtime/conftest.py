"""Bundles of the published layout, written once per session from the tiny checkpoints."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.onnx_community_bundle import open_small, write_small_published_bundle
from tests.support.onnx_community_writer import Numerics, PublishedOptions
from wyoming_qwen3tts.runtime.speech_model import SpeechModel

# Published variant -> how its graphs are written. The block size is that of our own bundles, so
# that the weights are the same after quantising.
VARIANTS = {
    "cpu_fp32": PublishedOptions(),
    "cpu_int8": PublishedOptions(precision="int8", numerics=Numerics()),
    "cpu_int4": PublishedOptions(precision="int4", numerics=Numerics(table_type=np.float16)),
    "cpu_fp16": PublishedOptions(numerics=Numerics(compute_type=np.float16, table_type=np.float16)),
}


@pytest.fixture(scope="session")
def published_bundle(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Callable[[str], Path]
) -> Callable[..., Path]:
    """Return a function: checkpoint name, variant -> the directory of its published bundle."""
    root = tmp_path_factory.mktemp("published")

    def get(name: str, variant: str = "cpu_fp32") -> Path:
        directory = root / name / variant
        if not directory.exists():
            write_small_published_bundle(tiny_checkpoint(name), directory, VARIANTS[variant])
        return directory

    return get


@pytest.fixture(scope="session")
def published_model(published_bundle: Callable[..., Path]) -> Callable[..., SpeechModel]:
    """Return a function: checkpoint name, variant -> its opened published bundle."""
    opened: dict[Path, SpeechModel] = {}

    def get(name: str, variant: str = "cpu_fp32") -> SpeechModel:
        directory = published_bundle(name, variant)
        if directory not in opened:
            opened[directory] = open_small(directory)
        return opened[directory]

    return get
