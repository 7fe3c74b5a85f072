"""Tiny checkpoints and their graphs, built once for all tests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.oracle.language_model import OracleLanguageModel
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.code_predictor import build_code_predictor
from wyoming_qwen3tts.builder.recipe import Precision, uniform_recipe
from wyoming_qwen3tts.builder.talker import build_talker
from wyoming_qwen3tts.builder.weights import Numerics

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
    made: dict[tuple[str, str], Path] = {}

    def path(model_size: str = "0.6B", precision: Precision = "fp32") -> Path:
        key = (model_size, precision)
        if key not in made:
            directory = tmp_path_factory.mktemp("talker")
            checkpoint = Checkpoint.open(tiny(model_size))
            recipe = uniform_recipe(precision)
            build_talker(
                checkpoint.main,
                checkpoint.talker,
                recipe.talker,
                Numerics(block_size=recipe.block_size),
                directory,
            )
            made[key] = directory / "talker.onnx"
        return made[key]

    return path


@pytest.fixture(scope="session")
def predictor_path(
    tiny: CheckpointFactory, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return the path of a tiny code predictor's graph."""
    made: dict[tuple[str, int, str], Path] = {}

    def path(
        model_size: str = "0.6B",
        num_code_groups: int = 16,
        precision: Precision = "fp32",
    ) -> Path:
        key = (model_size, num_code_groups, precision)
        if key not in made:
            directory = tmp_path_factory.mktemp("predictor")
            checkpoint = Checkpoint.open(tiny(model_size, num_code_groups))
            recipe = uniform_recipe(precision)
            build_code_predictor(
                checkpoint.main,
                checkpoint.code_predictor,
                recipe.code_predictor,
                Numerics(block_size=recipe.block_size),
                directory,
            )
            made[key] = directory / "code_predictor.onnx"
        return made[key]

    return path


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
