"""Writes what follows from the settings: the example file, and the Home Assistant app's files.

The app hands its options to the server as they are (options.json is a settings file), so every
option is a setting of the same name, and the Supervisor checks what the server would check.
"""

import re
import textwrap
from pathlib import Path
from typing import Any, Final

import yaml

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.config import SETTINGS
from wyoming_qwen3tts.settings import Setting

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "config" / "addon"
EXAMPLE: Final = ROOT / "config" / "server.example.yaml"
ADDRESSED: Final = ("config/replicas/kubernetes.yaml", "config/unraid.xml", "docs/install.md")
"""Files that name the image; its owner is that of the address in repository.yaml."""
_YAML_END: Final = "...\n"
_EXAMPLE_HEAD: Final = """\
# Every setting of wyoming-qwen3tts with its default. Use it with: wyoming-qwen3tts --config FILE
# The same settings exist as flags (--max-connections) and as environment variables
# (WYOMING_QWEN3TTS_MAX_CONNECTIONS). A flag beats the environment, which beats this file.
# Lists: repeat the flag (--model A --model B); separate entries of a variable with semicolons.
"""

EXCLUDED_OPTIONS: Final = {
    "uri": "the service sets it: Home Assistant looks for the app's port",
    "data_dirs": "the service sets it: the app's own folder and /share/qwen3-tts",
    "zeroconf": "the Supervisor tells Home Assistant of the app",
    "allowed_networks": "only Home Assistant reaches the app, unless its port is opened",
    "http": "nothing on the app's network reads metrics",
    "max_connections": "only Home Assistant reaches the app",
    "max_text_chars": "only Home Assistant reaches the app",
    "shutdown_timeout": "the Supervisor's own timeout fits the default",
}
"""Setting that is not an option of the app -> why."""

VISIBLE_OPTIONS: Final = {
    # Without it a new user would hear the demo voice, which speaks English only.
    "models": ["qwen3-tts-0.6b-customvoice"],
    "precision": "auto",
    "threads": 0,
    "sentence_silence": 0.0,
}
"""Option that the app's page shows at once -> its value in a new installation.

So are switches, which have no third position; the page hides the others at first.
"""

_HEAD: Final = """\
# Written by script/generate_addon from the settings of the server; change it there.
version: {version}
slug: qwen3_tts
name: Qwen3-TTS
description: Expressive speech in ten languages, made on your own machine
url: {url}
image: ghcr.io/{owner}/wyoming-qwen3tts-app
arch:
  - amd64
  - aarch64
# The first version that lets speech begin while the text is still being written.
homeassistant: 2025.7.0
# The image brings its own: s6-overlay.
init: false
discovery:
  - wyoming
map:
  - share:rw
ports:
  10200/tcp: null
# The image's own health check asks whether a voice can speak; the Supervisor heeds both.
watchdog: tcp://[HOST]:[PORT:10200]
# Longer than the server lets running requests go on.
timeout: 30
# Models can be built again; in a backup they only take room.
backup_exclude:
  - models
"""
_KINDS: Final = {bool: "bool", int: "int", float: "float", str: "str"}


def render_example() -> str:
    """Return a YAML file with every setting, its default and what it is for."""
    lines = [_EXAMPLE_HEAD]
    for name, known in SETTINGS.items():
        lines += [f"# {line}" for line in textwrap.wrap(known.doc, 98)]
        default = list(known.default) if known.kind is tuple else known.default
        if known.when_true is not None and default is None:
            default = False
        if known.kind is dict:
            lines += [yaml.safe_dump({name: default}, sort_keys=False, width=1_000)]
        else:
            value = yaml.safe_dump(default, default_flow_style=True, width=1_000)
            lines += [f"{name}: {value.removesuffix(_YAML_END).rstrip()}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def render_config() -> str:
    """Return the app's config.yaml."""
    visible = _visible()
    options = {known.name: visible[known.name] for known in _options() if known.name in visible}
    schema = {known.name: _schema(known) for known in _options()}
    url = _repository()
    head = _HEAD.format(version=__version__, url=url, owner=_owner(url))
    return head + _dump({"options": options, "schema": schema})


def render_addresses(text: str) -> str:
    """Return a text with this repository's address, and this version of its image."""
    url = _repository()
    image = f"ghcr.io/{_owner(url)}/wyoming-qwen3tts"
    text = re.sub(r"ghcr\.io/[^/\s]+/wyoming-qwen3tts(:[\d.]+)?", f"{image}:{__version__}", text)
    return re.sub(r"https://github\.com/[^/\s]+/wyoming-qwen3tts", url, text)


def _repository() -> str:
    return str(yaml.safe_load((ROOT / "repository.yaml").read_text())["url"])


def _owner(url: str) -> str:
    """Return the owner as images name it; OWNER stays a placeholder that no registry takes."""
    owner = url.split("/")[3]
    return owner if owner == "OWNER" else owner.lower()


def render_translation() -> str:
    """Return the English names and explanations of the options."""
    configuration = {
        known.name: {
            "name": known.name.replace("_", " ").capitalize(),
            # A file says null, the app's page leaves a field empty.
            "description": re.sub(r"\bnull\b", "empty", known.doc),
        }
        for known in _options()
    }
    network = {"10200/tcp": "Wyoming, for programs outside of Home Assistant"}
    head = "# Written by script/generate_addon from the settings of the server; change it there.\n"
    return head + _dump({"configuration": configuration, "network": network})


def _options() -> list[Setting]:
    return [known for name, known in SETTINGS.items() if name not in EXCLUDED_OPTIONS]


def _visible() -> dict[str, Any]:
    return {
        known.name: known.default for known in _options() if known.kind is bool
    } | VISIBLE_OPTIONS


def _schema(known: Setting) -> Any:
    """Return the Supervisor's check of an option; a question mark makes it optional."""
    if known.kind in {tuple, dict}:
        return ["str?"]
    element = f"list({'|'.join(known.choices)})" if known.choices else _KINDS[known.kind]
    if known.minimum is not None or known.maximum is not None:
        bounds = (known.minimum, known.maximum)
        texts = ["" if bound is None else f"{bound:g}" for bound in bounds]
        element += f"({','.join(texts)})"
    return element if known.name in _visible() else f"{element}?"


def _dump(values: dict[str, Any]) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=88)


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, as the rest of Home Assistant's files do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def main() -> None:
    """Write every file."""
    EXAMPLE.write_text(render_example())
    for name in ADDRESSED:
        (ROOT / name).write_text(render_addresses((ROOT / name).read_text()))
    (FOLDER / "CHANGELOG.md").write_text((ROOT / "CHANGELOG.md").read_text())
    (FOLDER / "config.yaml").write_text(render_config())
    (FOLDER / "translations" / "en.yaml").write_text(render_translation())


if __name__ == "__main__":
    main()
