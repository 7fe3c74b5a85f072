"""What every test shares: tiny models, put through the project's own builder once per session."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.hub_fixtures import (
    builds_here,
    fresh_client,
    hub,
    hub_client,
    served_checkpoint,
    tiny_catalogue,
)
from tests.support.tiny_checkpoint import TINY_CHECKPOINTS, write_tiny_checkpoint
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.recipe import Precision, uniform_recipe
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.speech_model import SpeechModel

__all__ = [
    "builds_here",
    "fresh_client",
    "hub",
    "hub_client",
    "served_checkpoint",
    "tiny_catalogue",
]

NUM_THREADS = 2


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Undo what the command line does to the log, which outlives a test's standard error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function: checkpoint name ("0.6B-custom_voice") -> its directory."""
    root = tmp_path_factory.mktemp("checkpoints")

    def get(name: str) -> Path:
        directory = root / name
        if not directory.exists():
            model_size, model_type = TINY_CHECKPOINTS[name]
            write_tiny_checkpoint(directory, model_type, model_size)
        return directory

    return get


@pytest.fixture(scope="session")
def tiny_bundle(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Callable[[str], Path]
) -> Callable[..., Path]:
    """Return a function: checkpoint name, precision -> the directory of its bundle."""
    root = tmp_path_factory.mktemp("bundles")

    def get(name: str, precision: Precision = "fp32") -> Path:
        directory = root / f"tiny-{name.lower()}" / f"cpu_{precision}"
        if not directory.exists():
            options = BuildOptions(recipe=uniform_recipe(precision), name=f"tiny-{name.lower()}")
            build_bundle(tiny_checkpoint(name), directory, options)
        return directory

    return get


@pytest.fixture(scope="session")
def tiny_model(tiny_bundle: Callable[..., Path]) -> Callable[..., SpeechModel]:
    """Return a function: checkpoint name, precision -> its opened model."""
    opened: dict[Path, SpeechModel] = {}

    def get(name: str, precision: Precision = "fp32") -> SpeechModel:
        directory = tiny_bundle(name, precision)
        if directory not in opened:
            opened[directory] = open_bundle(directory, NUM_THREADS)
        return opened[directory]

    return get


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> SpeechModel:
    """Return a model whose end of speech is never drawn: lengths are what the limit says."""
    root = tmp_path_factory.mktemp("endless")
    checkpoint = write_tiny_checkpoint(root / "checkpoint", eos_gain=0.0)
    options = BuildOptions(recipe=uniform_recipe("fp32"))
    bundle = build_bundle(checkpoint, root / "bundle", options)
    return open_bundle(bundle, NUM_THREADS)
