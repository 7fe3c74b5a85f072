"""A stand-in hub with tiny checkpoints, and huggingface_hub kept away from everything else."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from tests.support.hub import StandInHub, running_hub
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.recipe import uniform_recipe
from wyoming_qwen3tts.models import provision
from wyoming_qwen3tts.models import registry as model_catalogue
from wyoming_qwen3tts.models.hub import HubOptions

OWN = "someone/tiny"
"""A repository that the catalogue does not know."""
PATIENCE = {"timeout_s": 0.5, "num_retries": 3, "first_wait_s": 0.01}
_ENVIRONMENT = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CHECKPOINT_PATHS = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "model.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
)


@pytest.fixture
def hub_client(monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> None:
    """Give huggingface_hub an empty cache, no token and no proxy."""
    for name in (*_ENVIRONMENT, *_PROXIES, *(name.lower() for name in _PROXIES)):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("hub-home")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))


@pytest.fixture
def fresh_client(hub_client) -> Iterator[None]:
    """Let huggingface_hub read proxy settings anew, which it does once for all requests."""
    close_session()
    yield
    close_session()


@pytest.fixture(scope="session")
def served_checkpoint(tmp_path_factory) -> Path:
    """Return the checkpoint that stands in for all published ones."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("served") / "checkpoint")


@pytest.fixture
def hub(served_checkpoint, hub_client) -> Iterator[StandInHub]:
    with running_hub() as running:
        running.add_directory(OWN, served_checkpoint)
        yield running


@pytest.fixture
def server_hub(hub, monkeypatch):
    """Let a server of this process ask the stand-in hub."""
    template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    return hub


@pytest.fixture
def options(hub) -> HubOptions:
    return HubOptions(endpoint=hub.endpoint, **PATIENCE)


@pytest.fixture
def tiny_catalogue(hub, served_checkpoint, monkeypatch):
    """Let the published models be tiny ones that the stand-in hub serves."""
    with tiny_models(monkeypatch, served_checkpoint):
        for model in model_catalogue.catalogue_models():
            hub.add_directory(model.repo, served_checkpoint, commit=model.revision)
        yield


@pytest.fixture
def builds_here(monkeypatch):
    """Let builds run in this process, which starts sooner than one of their own."""

    def run_build(arguments, progress, _cancelled) -> None:
        flags = dict(each[2:].split("=", 1) for each in arguments[1:] if "=" in each)
        recipe = uniform_recipe(flags["precision"])
        options = BuildOptions(recipe, force=True, name=flags["name"])
        build_bundle(
            Path(arguments[0]),
            Path(flags["output"]),
            options,
            lambda stage, fraction: progress(fraction, stage),
        )

    monkeypatch.setattr(provision, "run_build", run_build)


@contextmanager
def tiny_models(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> Iterator[None]:
    """Let the catalogue have the sizes and hashes of a tiny checkpoint."""
    real = model_catalogue._read()

    def entry(path: str) -> dict[str, object]:
        content = (checkpoint / path).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        return {"path": path, "bytes": len(content), "sha256": digest}

    def tiny(files: list[dict[str, object]]) -> list[dict[str, object]]:
        return [entry(str(file["path"])) for file in files]

    models = [{**model, "files": tiny(model["files"]), "measured": {}} for model in real["models"]]
    values = {**real, "shared_files": tiny(real["shared_files"]), "models": models}
    monkeypatch.setattr(model_catalogue, "_read", lambda: values)
    cached = model_catalogue.catalogue_models
    cached.cache_clear()
    yield
    cached.cache_clear()


def child_environment(hub: StandInHub, home: Path) -> dict[str, str]:
    """Return the environment of a process that uses the stand-in hub."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.upper() not in (*_ENVIRONMENT, *_PROXIES)
    }
    return {**kept, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home)}
