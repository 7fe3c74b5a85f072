"""The Home Assistant app's config.yaml and translations, made from the settings of the server.

The app hands its options to the server as they are (options.json is a settings file), so every
option is a setting of the same name, and the Supervisor checks what the server would check.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from wyoming_qwen3tts import __version__, settings
from wyoming_qwen3tts.config import ServerConfig
from wyoming_qwen3tts.settings import Setting

LEFT_OUT: Final = {
    "uri": "the service says it: Home Assistant looks for the port that the app has",
    "data_dir": "the service says it: the app's own folder and /share/qwen3-tts",
    "zeroconf": "the Supervisor tells Home Assistant of the app",
    "device": "the image has the processor's onnxruntime only",
    "log_format": "the log is read in Home Assistant's pages only",
    "allow": "only Home Assistant reaches the app, unless its port is opened on the app's page",
    "http": "nothing on the app's own network asks for figures",
    "limits": "they guard against strangers; only Home Assistant reaches the app",
}
"""Setting or section that is no option of the app, and why."""

SHOWN: Final = {
    # Without it a new user would hear the demo voice, which speaks English only.
    "model": ["qwen3-tts-0.6b-customvoice"],
    "precision": "auto",
    "threads": 0,
    "sentence_silence": 0.0,
}
"""Option that the app's page shows at once -> its value in a new installation.

So are switches, which have no third position; the page hides the others until somebody asks.
"""

_HEAD: Final = """\
# Written by script/generate_addon from the settings of the server; change it there.
version: {version}
slug: qwen3_tts
name: Qwen3-TTS
description: Expressive speech in ten languages, made on your own machine
url: https://github.com/wyoming-qwen3tts/wyoming-qwen3tts
image: ghcr.io/wyoming-qwen3tts/wyoming-qwen3tts-app
arch:
  - amd64
  - aarch64
# The first one that lets speech begin while the text is still being written.
homeassistant: 2025.7.0
# The image brings its own: s6-overlay.
init: false
discovery:
  - wyoming
map:
  - share:rw
ports:
  10200/tcp: null
# Longer than the server lets running requests go on.
timeout: 30
# They can be made again, and would be in every backup.
backup_exclude:
  - models
"""
_KINDS: Final = {bool: "bool", int: "int", float: "float", str: "str"}


def render_config() -> str:
    """Return the app's config.yaml."""
    options: dict[str, Any] = {}
    schema: dict[str, Any] = {}
    shown = _shown()
    for known in _options():
        *outer, name = known.path
        for section in outer:
            # A section must be there, even an empty one: the Supervisor knows no optional ones.
            options.setdefault(section, {})
            schema.setdefault(section, {})
        (schema[outer[0]] if outer else schema)[name] = _schema(known)
        if known.path in shown:
            (options[outer[0]] if outer else options)[name] = shown[known.path]
    return _HEAD.format(version=__version__) + _dump({"options": options, "schema": schema})


def render_translation() -> str:
    """Return the English names and explanations of the options."""
    configuration: dict[str, Any] = {}
    for known in _options():
        *outer, name = known.path
        target = configuration
        if outer:
            doc = settings.section_doc(ServerConfig, tuple(outer))
            inner = {"name": _title(outer[0]), "description": doc, "fields": {}}
            target = configuration.setdefault(outer[0], inner)["fields"]
        target[name] = {"name": _title(name), "description": _describe(known)}
    network = {"10200/tcp": "Wyoming, for programs outside of Home Assistant"}
    head = "# Written by script/generate_addon from the settings of the server; change it there.\n"
    return head + _dump({"configuration": configuration, "network": network})


def _options() -> Iterator[Setting]:
    for known in settings.list_settings(ServerConfig):
        if known.path[0] not in LEFT_OUT:
            if len(known.path) > 2:
                raise ValueError(f"{'.'.join(known.path)} is too deep for the app's pages")
            yield known


def _shown() -> dict[settings.Path, Any]:
    switches = {known.path: known.default for known in _options() if known.kind is bool}
    return switches | {(name,): value for name, value in SHOWN.items()}


def _schema(known: Setting) -> Any:
    """Return what the Supervisor is to check; a question mark lets an option be left out."""
    if known.kind is tuple:
        return ["str?"]
    element = f"list({'|'.join(known.choices)})" if known.choices else _KINDS[known.kind]
    if known.minimum is not None or known.maximum is not None:
        bounds = (known.minimum, known.maximum)
        texts = ["" if bound is None else f"{bound:g}" for bound in bounds]
        element += f"({','.join(texts)})"
    return element if known.path in _shown() else f"{element}?"


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _describe(known: Setting) -> str:
    # In a file one writes null, in the app's pages one leaves a field empty.
    return re.sub(r"\bnull\b", "empty", known.doc)


def _dump(values: dict[str, Any]) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=88)


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, as the rest of Home Assistant's files do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)
