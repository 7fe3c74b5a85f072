"""The Home Assistant app: its generated files are up to date, and fit the server."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from script._tools.addon import (
    ADDRESSED,
    EXCLUDED_OPTIONS,
    VISIBLE_OPTIONS,
    render_addresses,
    render_config,
    render_translation,
)
from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.config import SETTINGS, flag_names, read_file
from wyoming_qwen3tts.models.registry import find_model

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "config" / "addon"
SERVICES = FOLDER / "rootfs" / "etc" / "s6-overlay" / "s6-rc.d"
HINT = "run script/generate_addon"

# What the Supervisor understands in a schema, as far as the app uses it.
_NUMBER = r"-?\d*\.?\d+"
_ELEMENT = re.compile(
    rf"bool|str|int(\((-?\d+)?,(-?\d+)?\))?|float(\(({_NUMBER})?,({_NUMBER})?\))?"
    r"|list\([a-z0-9_]+(\|[a-z0-9_]+)+\)"
)


@pytest.fixture
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "config.yaml").read_text())
    return loaded


def test_generated_texts_are_up_to_date() -> None:
    assert (FOLDER / "config.yaml").read_text() == render_config(), HINT
    assert (FOLDER / "translations" / "en.yaml").read_text() == render_translation(), HINT


def test_the_schema_is_one_that_the_supervisor_understands(config: dict[str, Any]) -> None:
    elements = list(config["schema"].values())

    assert elements
    for element in elements:
        (kind,) = element if isinstance(element, list) else [element]
        assert _ELEMENT.fullmatch(kind.removesuffix("?")), element


def test_options_are_complete(config: dict[str, Any]) -> None:
    """What has no question mark must have a value, or the app does not start."""
    for name, element in config["schema"].items():
        if isinstance(element, str) and not element.endswith("?"):
            assert name in config["options"], name


def test_the_server_takes_the_options_as_they_are(config: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps(config["options"]))

    settings = read_file(file)

    assert settings["models"] == tuple(VISIBLE_OPTIONS["models"])
    assert settings["debug"] is False


def test_every_setting_is_an_option_or_left_out_for_a_reason(config: dict[str, Any]) -> None:
    assert set(config["schema"]) == set(SETTINGS) - set(EXCLUDED_OPTIONS)
    assert set(EXCLUDED_OPTIONS) <= set(SETTINGS)


def test_every_option_is_explained(config: dict[str, Any]) -> None:
    texts = yaml.safe_load((FOLDER / "translations" / "en.yaml").read_text())

    assert set(texts["configuration"]) == set(config["schema"])
    for path, entry in texts["configuration"].items():
        assert entry["name"], path
        assert entry["description"], path
        assert "null" not in entry["description"], path


def test_a_new_installation_gets_a_model_with_words() -> None:
    for name in VISIBLE_OPTIONS["models"]:
        assert find_model(name) is not None, name


def test_version_and_names(config: dict[str, Any]) -> None:
    assert config["version"] == __version__
    assert re.fullmatch(r"[a-z0-9_]+", config["slug"])
    assert (FOLDER / "CHANGELOG.md").read_text() == (ROOT / "CHANGELOG.md").read_text()
    repository = yaml.safe_load((ROOT / "repository.yaml").read_text())
    assert set(repository) == {"name", "url", "maintainer"}
    assert config["url"] == repository["url"]


@pytest.mark.parametrize("file", ["compose.yaml", "Dockerfile", *ADDRESSED])
def test_every_image_has_this_version_and_owner(file: str) -> None:
    text = (ROOT / file).read_text()
    versions = re.findall(r"(?:wyoming-qwen3tts:|BUILD_VERSION=)(\d[\w.]*\w)", text)

    assert versions == [__version__]
    assert render_addresses(text) == text, HINT


def test_no_other_file_names_an_owner() -> None:
    text = "https://github.com/a/wyoming-qwen3tts ghcr.io/a/wyoming-qwen3tts-app"
    for path in ROOT.rglob("*"):
        if path.suffix in {".md", ".yaml", ".yml", ".toml", ".xml"} and ".venv" not in str(path):
            text = path.read_text(encoding="utf-8")
            owners = re.findall(r"(?:github\.com|ghcr\.io)/([^/\s]+)/wyoming-qwen3tts", text)
            assert len(set(owners)) <= 1, path


def test_no_other_file_looks_like_an_app() -> None:
    """The Supervisor takes every config.yaml and config.json of a repository for one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = [
        path for path in listed.stdout.split() if re.search(r"(^|/)config\.(ya?ml|json)$", path)
    ]

    assert found in ([], ["config/addon/config.yaml"])


def test_services_are_well_formed() -> None:
    for name in ("wyoming-qwen3tts", "discovery"):
        assert (SERVICES / "user" / "contents.d" / name).is_file()
        assert (SERVICES / name / "run").stat().st_mode & 0o111
        kind = (SERVICES / name / "type").read_text().strip()
        assert kind == ("longrun" if name == "wyoming-qwen3tts" else "oneshot")
    assert (SERVICES / "wyoming-qwen3tts" / "finish").stat().st_mode & 0o111
    up = (SERVICES / "discovery" / "up").read_text().strip()
    assert up == "/etc/s6-overlay/s6-rc.d/discovery/run"
    assert (SERVICES / "discovery" / "dependencies.d" / "wyoming-qwen3tts").is_file()


def test_the_service_calls_the_server_with_flags_that_it_has() -> None:
    text = (SERVICES / "wyoming-qwen3tts" / "run").read_text()
    used = set(re.findall(r"^    (--[a-z-]+)", text, re.MULTILINE))

    assert used == {"--config", "--uri", "--data-dir"}
    assert used <= {"--config", *flag_names()}
