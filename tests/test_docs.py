"""What the pages for users say is true of the program."""

import argparse
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from wyoming_qwen3tts.cli import COMMANDS
from wyoming_qwen3tts.config import (
    ENVIRONMENT_PREFIX,
    SETTINGS,
    flag_names,
    variable_name,
)
from wyoming_qwen3tts.models.registry import find_model, published_models

ROOT = Path(__file__).parents[1]
PAGES = [
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md"))),
    "README.md",
    "config/addon/DOCS.md",
    "config/addon/README.md",
]
INSTALLATIONS = ["compose.yaml", "Dockerfile", "config/replicas/kubernetes.yaml"]
VARIABLES = {variable_name(name) for name in SETTINGS}
SERVER_FLAGS = {*flag_names(), "--config"}
OTHER_FLAGS = {
    # Of docker, of our scripts and of other programs.
    "--all",
    "--build-arg", "--cpus", "--debian", "--detach", "--env", "--follow", "--format", "--help",
    "--name", "--network", "--publish", "--read-only", "--restart", "--rm",
    "--tag", "--target", "--tmpfs", "--user", "--version",
    "--volume",
}  # fmt: skip


def command_flags() -> set[str]:
    """Return the flags of every subcommand and of its own subcommands."""
    flags: set[str] = set()
    for module, _ in COMMANDS.values():
        # As the command line does: say has a --language of its own.
        parser = argparse.ArgumentParser(conflict_handler="resolve")
        importlib.import_module(module).add_arguments(parser)
        parsers = [parser]
        while parsers:
            for action in parsers.pop()._actions:
                flags |= set(action.option_strings)
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
    return flags


@pytest.mark.parametrize("page", [*PAGES, *INSTALLATIONS])
def test_variables_exist(page: str) -> None:
    named = set(re.findall(rf"{ENVIRONMENT_PREFIX}[A-Z0-9_]+", (ROOT / page).read_text()))

    assert named <= VARIABLES


@pytest.mark.parametrize("page", PAGES)
def test_flags_exist(page: str) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / page).read_text()))

    assert named <= SERVER_FLAGS | OTHER_FLAGS | command_flags()


@pytest.mark.parametrize("page", [*PAGES, *INSTALLATIONS])
def test_models_exist(page: str) -> None:
    named = set(re.findall(r"qwen3-tts-\d[a-z0-9.-]+[a-z]", (ROOT / page).read_text()))

    assert all(find_model(name) for name in named), named
    if page == "config/addon/DOCS.md":
        assert named == {model.name for model in published_models()}


@pytest.mark.parametrize(
    "page", ["docs/install.md", "docs/home-assistant.md", "config/addon/DOCS.md"]
)
def test_size_of_the_first_download_is_true(page: str) -> None:
    model = find_model("qwen3-tts-0.6b-customvoice")
    assert model is not None
    text = " ".join((ROOT / page).read_text().split())

    sizes = re.findall(r"fetches (?:its model \()?about ([\d.]+) GB", text)

    assert sizes == [f"{model.num_bytes / 1e9:.1f}"]


@pytest.mark.parametrize("page", PAGES)
def test_automations_are_ones_that_home_assistant_takes(page: str) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        action: dict[str, Any] = yaml.safe_load(block)
        if "action" not in action:
            continue  # the settings of a voice
        assert set(action) == {"action", "target", "data"}
        assert set(action["data"]) <= {"media_player_entity_id", "message", "language", "options"}
        assert set(action["data"]["options"]) <= {"voice", "speaker"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_pods_are_told_nothing_by_accident() -> None:
    """Kubernetes' own variables for a service called wyoming-qwen3tts would look like settings."""
    documents = list(yaml.safe_load_all((ROOT / "config/replicas/kubernetes.yaml").read_text()))
    pod = documents[0]["spec"]["template"]["spec"]

    assert [document["kind"] for document in documents] == ["Deployment", "Service"]
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert documents[1]["spec"]["selector"].items() <= (
        documents[0]["spec"]["template"]["metadata"]["labels"].items()
    )
