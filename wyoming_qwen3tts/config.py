"""The settings of the server and of every command: flags, environment and one YAML file.

A flag beats the environment, which beats the file, which beats the default. A setting has the same
name everywhere: ``max_connections`` in the file is ``--max-connections`` and
``WYOMING_QWEN3TTS_MAX_CONNECTIONS``.
"""

import argparse
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.machine import default_num_threads
from wyoming_qwen3tts.settings import (
    list_settings,
    read_mapping,
    setting,
    suggestion,
    warn_old_name,
)

_LOGGER = logging.getLogger(__name__)

ENVIRONMENT_PREFIX: Final = "WYOMING_QWEN3TTS_"
_CONFIG_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}CONFIG"
AUTOMATIC_NAME: Final = "auto"
_PACKAGE_ROOT: Final = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Config:
    """Every setting."""

    uri: str = setting(
        "tcp://0.0.0.0:10200", "Address to listen on: tcp://HOST:PORT, unix:///PATH or stdio://."
    )
    models: tuple[str, ...] = setting(
        (),
        "Models to serve: names such as qwen3-tts-0.6b-customvoice, repositories as owner/name, or "
        "directories of checkpoints or bundles. Missing models are downloaded and built. Default: "
        "all installed models, or the built-in demo voice.",
        item="model",
        commas=True,
    )
    model_wait_timeout: float = setting(
        0.0,
        "Seconds that a request waits for a model that is being installed; then it fails with a "
        "message that gives the progress.",
        minimum=0,
        maximum=3_600,
    )
    local_files_only: bool = setting(
        False, "Never use the network; build models only from files on this machine."
    )
    keep_checkpoint: bool = setting(
        False, "Keep the files downloaded for a build. Serving needs only the bundle."
    )
    data_dirs: tuple[str, ...] = setting(
        (),
        "Directories to search for model bundles and the voice library; the first is written to. "
        "Default: the folder onnx of a source checkout, else the user's data folder.",
        item="data_dir",
    )
    voice: str | None = setting(
        None, "Voice for requests that name none; null takes the first voice."
    )
    precision: Literal["auto", "fp32", "int8", "int4"] = setting(
        "auto", "Precision of the models. auto takes an installed bundle, and builds int8."
    )
    threads: int = setting(
        0, "Threads for synthesis; 0 takes one for each fast core.", minimum=0, maximum=1_024
    )
    text_mode: Literal["sentences", "continuous"] = setting(
        "sentences",
        "How to speak text that arrives in pieces. sentences: each sentence is an utterance of its "
        "own, several at a time. continuous: all text is one utterance that grows with the text, "
        "without seams. Voices cloned with a transcript always speak by sentences.",
        old_values={"tokens": "continuous"},
    )
    parallel_utterances: int = setting(
        4,
        "Utterances that one model speaks at the same time: sentences of one text, or requests of "
        "several clients. The last place is for the beginning of an answer. Each costs memory.",
        minimum=1,
        maximum=16,
    )
    max_loaded_weights_mb: int | None = setting(
        None,
        "Megabytes of model weights to keep in memory. The least recently used model is closed "
        "first. null keeps every model open.",
        minimum=1,
    )
    idle_unload_seconds: float | None = setting(
        None,
        "Seconds without requests after which a model is closed. The next request opens it again, "
        "which takes as long as the first time. null keeps models open.",
        minimum=0.1,
    )
    max_requests: int = setting(
        64, "Maximum number of active and queued requests; more fail with BusyError.", minimum=1
    )
    streaming: bool = setting(
        True, "Tell clients that they may send text in pieces, as a language model writes it."
    )
    styles: Mapping[str, str] = setting(
        {
            "cheerful": "Speak in a cheerful, bright tone.",
            "calm": "Speak calmly and slowly, in a warm tone.",
            "whisper": "Whisper softly, close to the listener.",
            "serious": "Speak in a serious, matter-of-fact tone.",
        },
        "Styles that clients may choose as the speaker of a voice, each with its instruction "
        "(--style NAME=INSTRUCTION). Only models that follow instructions offer them. Any other "
        "speaker is taken as the instruction itself.",
        item="style",
    )
    languages: tuple[str, ...] = setting(
        (),
        "Languages that texts may be in, such as de and en, where the request does not name one. "
        "Default: all that a voice speaks. Fewer languages are detected more reliably.",
        item="language",
        commas=True,
    )
    text_rules: Literal["all", "markup", "none"] = setting(
        "all",
        "What is done to a text before it is spoken. all: numbers, dates, units and the like "
        "become words, and markup is left out; markup: only the latter; none: nothing.",
    )
    disabled_text_rules: tuple[str, ...] = setting(
        (),
        "Text rules that are not applied: characters, code_blocks, html, stage_directions, "
        "markdown, links, emoji, dates, phone_numbers, ranges, times, symbols, currencies, units, "
        "ordinals, numbers, punctuation, closing; or all.",
        item="disabled_text_rule",
        commas=True,
    )
    seed: int | None = setting(
        None, "Random seed for repeatable speech; null draws a new one each time.", minimum=0
    )
    temperature: float | None = setting(
        None,
        "Sampling temperature of the talker: higher is livelier, lower is steadier, 0 always takes "
        "the likeliest code. null takes the model's own.",
        minimum=0,
        maximum=10,
    )
    top_k: int | None = setting(
        None, "Number of likeliest codes to sample from; 0: all, null: the model's own.", minimum=0
    )
    top_p: float | None = setting(
        None,
        "The talker samples from the likeliest codes that reach this probability together; null "
        "takes the model's own.",
        minimum=0.01,
        maximum=1,
    )
    sentence_silence: float = setting(
        0.0, "Seconds of silence between sentences.", minimum=0, maximum=10
    )
    leading_silence: float = setting(
        0.0, "Seconds of silence first, for players that swallow the start.", minimum=0, maximum=10
    )
    trailing_silence: float = setting(
        0.0, "Seconds of silence last, for players that swallow the end.", minimum=0, maximum=10
    )
    max_prebuffer: float = setting(
        4.0,
        "Longest delay before an answer begins, in seconds. A model that is slower than real time "
        "collects audio first, so that playback does not stop between sentences. 0 never delays.",
        minimum=0,
        maximum=30,
    )
    zeroconf: str | None = setting(
        None,
        "Announce the server on the local network, so that Home Assistant finds it: false, true, "
        "or the name to announce.",
        when_true=AUTOMATIC_NAME,
    )
    allowed_networks: tuple[str, ...] = setting(
        (),
        "Networks whose clients are served, such as 192.168.1.0/24 or fd00::/8; this machine "
        "always is. Default: every network.",
        item="allowed_network",
        commas=True,
    )
    http: str | None = setting(
        None,
        "Address of the pages /metrics (for Prometheus) and /health, as HOST:PORT, or as PORT for "
        "this machine alone: false, true for 127.0.0.1:10280, or an address. allowed_networks "
        "applies.",
        when_true="127.0.0.1:10280",
    )
    debug: bool = setting(False, "Log debug messages, and tracebacks of unexpected failures.")
    max_connections: int = setting(512, "Maximum number of client connections.", minimum=1)
    max_text_chars: int = setting(
        120_000, "Longest text of one request, streamed or not, in characters.", minimum=1
    )
    shutdown_timeout: float = setting(
        8.0,
        "Seconds from the signal to the end of the process. Running requests get three quarters "
        "of it; stop the container later than that.",
        minimum=0,
    )

    @property
    def data_paths(self) -> list[Path]:
        """Directories of bundles and voices; the first is written to."""
        if self.data_dirs:
            return [Path(each).expanduser() for each in self.data_dirs]
        if (_PACKAGE_ROOT / "pyproject.toml").exists():
            return [_PACKAGE_ROOT / "onnx"]
        try:
            base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        except RuntimeError as error:  # neither HOME nor an entry in passwd
            raise ConfigError("no home directory is known; set --data-dir or HOME") from error
        return [base / "wyoming-qwen3tts"]

    def check_data_dirs(self) -> None:
        """Raise a ConfigError if a directory that was named does not exist: it may be mistyped."""
        for name in self.data_dirs:
            if not Path(name).expanduser().is_dir():
                raise ConfigError(f"data_dirs: {name} does not exist; create it, or correct it")

    @property
    def num_threads(self) -> int:
        """Threads for synthesis."""
        return self.threads or default_num_threads()


SETTINGS: Final = list_settings(Config)
"""Name -> setting of :class:`Config`."""

_OLD_LIMITS: Final = (
    *("max_header_bytes", "max_data_bytes", "max_payload_bytes", "max_name_chars", "max_errors"),
    *("max_pending_requests", "max_events_per_s", "event_timeout_s", "write_timeout_s"),
    *("idle_timeout_s", "answer_timeout_s", "error_linger_s"),
)
OLD_NAMES: Final[Mapping[str, str | None]] = {
    "model": "models",
    "data_dir": "data_dirs",
    "wait_for_model": "model_wait_timeout",
    "lanes": "parallel_utterances",
    "memory_limit": "max_loaded_weights_mb",
    "unload_after": "idle_unload_seconds",
    "max_waiting": "max_requests",
    "keep_as_written": "disabled_text_rules",
    "hold_back": "max_prebuffer",
    "allow": "allowed_networks",
    **{f"sampling.{name}": name for name in ("temperature", "top_k", "top_p")},
    **{f"limits.{name}": name for name in ("max_connections", "max_text_chars")},
    "limits.shutdown_timeout_s": "shutdown_timeout",
    **dict.fromkeys(("device", "log_format", *(f"limits.{name}" for name in _OLD_LIMITS))),
}
"""Former name of a setting -> its name now, or None when it is gone. Remove in the next release."""


def make_config(**values: Any) -> Config:
    """Return checked settings, as a YAML file would give them.

    Raises:
        ConfigError: A setting is unknown, of the wrong kind or out of range.
    """
    return Config(**read_mapping(Config, values, "settings"))


def load_config(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    """Return the settings from flags (see :func:`add_flags`), environment and file.

    Raises:
        ConfigError: A setting is unknown, of the wrong kind or out of range.
    """
    values: dict[str, Any] = {}
    given = vars(arguments)
    if file := given.get("config") or environment.get(_CONFIG_VARIABLE):
        values |= read_file(Path(file))
    variables = {variable_name(name): name for name in (*OLD_NAMES, *SETTINGS)}
    for variable, text in environment.items():
        if variable in variables:
            values |= _parse(variables[variable], text, variable_name)
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable != _CONFIG_VARIABLE:
            # Only a warning: Kubernetes sets variables such as WYOMING_QWEN3TTS_SERVICE_HOST.
            near = suggestion(variable, variables)
            _LOGGER.warning("Unknown environment variable %s%s", variable, near)
    for name in (*OLD_NAMES, *SETTINGS):
        if (value := given.get(_dest(name))) is not None:
            values |= _parse(name, value, flag_name)
    return Config(**values)


def read_file(path: Path) -> dict[str, Any]:
    """Return the checked settings of a YAML file.

    Raises:
        ConfigError: The file cannot be read, is not valid YAML, or holds a wrong setting.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return read_mapping(Config, values, str(path), OLD_NAMES)


def _parse(name: str, text: Any, spell: Callable[[str], str]) -> dict[str, Any]:
    """Return the value of a setting under its name now; nothing if the setting is gone."""
    new = OLD_NAMES.get(name, name)
    if name in OLD_NAMES:
        warn_old_name(spell(name), new and spell(new))
    return {} if new is None else {new: SETTINGS[new].parse(text, spell(name))}


def add_flags(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add ``--config`` and a flag for each named setting, or for all; absent flags set nothing."""
    help_line = "YAML file with settings, see server.example.yaml"
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=help_line)
    items = {known.item for known in SETTINGS.values()}
    for name in (*SETTINGS, *OLD_NAMES):
        new = OLD_NAMES.get(name, name)
        # A former name may be the name of one entry now (--model).
        if (names and new not in names) or (name in OLD_NAMES and name in items):
            continue
        flags = [flag_name(name)]
        options: dict[str, Any] = {"dest": _dest(name), "default": argparse.SUPPRESS}
        known = SETTINGS[new] if new else None
        if known is None or name in OLD_NAMES:
            options["help"] = argparse.SUPPRESS
        else:
            options["help"] = f"{known.doc} (default: {_shown(known.default)})".replace("%", "%%")
            flags = [flag_name(each) for each in (known.item, name) if each]
        if known is not None and known.kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif known is not None:
            options["metavar"] = (known.item or known.name).upper()
            if known.kind in {tuple, dict}:
                options["action"] = "append"
            if known.when_true is not None:
                options |= {"nargs": "?", "const": known.when_true, "metavar": "NAME"}
        parser.add_argument(*flags, **options)


def is_given(arguments: argparse.Namespace, name: str) -> bool:
    """Return whether a setting was given as a flag."""
    return _dest(name) in vars(arguments)


def flag_name(name: str) -> str:
    """Return the flag of a setting."""
    return "--" + name.replace(".", "-").replace("_", "-")


def flag_names() -> list[str]:
    """Return every flag that stands for a setting."""
    return [flag_name(each) for k in SETTINGS.values() for each in (k.item, k.name) if each]


def variable_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def _dest(name: str) -> str:
    """Return the name of a flag's value: other flags of a command may be named like a setting."""
    return f"setting:{name}"


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple | dict):
        return ", ".join(default) or "none"
    return "none" if default is None else str(default)
