"""Tiny checkpoints and their graphs, built once for all tests."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.oracle.language_model import OracleLanguageModel
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.graphs.code_predictor import build_code_predictor
from wyoming_qwen3tts.builder.graphs.lm import build_talker
from wyoming_qwen3tts.builder.recipe import Precision, uniform_recipe

CheckpointFactory = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CheckpointFactory:
    """Return the directory of a tiny checkpoint; equal arguments give the same one."""
    made: dict[tuple[str, int], Path] = {}

    def directory(model_size: str = "0.6B", num_code_groups: int = 16) -> Path:
        key = (model_size, num_code_groups)
        if key not in made:
            parent = tmp_path_factory.mktemp("checkpoint")
            made[key] = write_tiny_checkpoint(
                parent / "tiny", model_size=model_size, num_code_groups=num_code_groups
            )
        return made[key]

    return directory


@pytest.fixture(scope="session")
def oracle(tiny: CheckpointFactory) -> Callable[..., OracleLanguageModel]:
    return lambda *args, **kwargs: OracleLanguageModel(tiny(*args, **kwargs))


@pytest.fixture(scope="session")
def talker_path(
    tiny: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return the path of a tiny talker's graph."""

    @cache
    def path(model_size: str = "0.6B", precision: Precision = "fp32") -> Path:
        directory = tmp_path_factory.mktemp("talker")
        checkpoint = Checkpoint.open(tiny(model_size))
        build_talker(checkpoint.main, checkpoint.talker, uniform_recipe(precision), directory)
        return directory / "talker.onnx"

    return path


@pytest.fixture(scope="session")
def predictor_path(
    tiny: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return the path of a tiny code predictor's graph."""

    @cache
    def path(
        model_size: str = "0.6B", num_code_groups: int = 16, precision: Precision = "fp32"
    ) -> Path:
        directory = tmp_path_factory.mktemp("predictor")
        checkpoint = Checkpoint.open(tiny(model_size, num_code_groups))
        config, recipe = checkpoint.code_predictor, uniform_recipe(precision)
        build_code_predictor(checkpoint.main, config, recipe, directory)
        return directory / "code_predictor.onnx"

    return path


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
