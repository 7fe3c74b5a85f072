"""Settings of the server: from flags, environment and a YAML file into frozen dataclasses.

A flag beats the environment, which beats the file, which beats the default. Every setting has the
same name in all three: ``limits.max_connections`` in the file is ``--limits-max-connections`` and
``WYOMING_QWEN3TTS_LIMITS_MAX_CONNECTIONS``.
"""

import argparse
import difflib
import logging
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from wyoming_qwen3tts import settings
from wyoming_qwen3tts.errors import ConfigError
from wyoming_qwen3tts.protocol.limits import ConnectionLimits
from wyoming_qwen3tts.settings import Setting, section, setting

_LOGGER = logging.getLogger(__name__)

ENVIRONMENT_PREFIX: Final = "WYOMING_QWEN3TTS_"
_CONFIG_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}CONFIG"
AUTOMATIC_NAME: Final = "auto"

_EXAMPLE_HEAD: Final = """\
# Every setting of wyoming-qwen3tts with its default. Use it with: wyoming-qwen3tts --config FILE
# The same settings exist as flags (--limits-max-connections) and as environment variables
# (WYOMING_QWEN3TTS_LIMITS_MAX_CONNECTIONS); a flag beats the environment, which beats this file.
"""


@dataclass(frozen=True)
class SamplingConfig:
    """How codes are drawn."""

    temperature: float | None = setting(
        None,
        "Higher is livelier, lower is steadier; null takes the model's own.",
        minimum=0.01,
        maximum=10.0,
    )
    top_k: int | None = setting(
        None,
        "Only this many of the likeliest codes are drawn from, 0 for all; "
        "null takes the model's own.",
        minimum=0,
    )
    top_p: float | None = setting(
        None,
        "Only the likeliest codes that have this share of the probability together are drawn "
        "from; null takes the model's own.",
        minimum=0.01,
        maximum=1.0,
    )


@dataclass(frozen=True)
class ServerConfig:
    """Everything that a user can decide about the server."""

    uri: str = setting(
        "tcp://0.0.0.0:10200", "Address to listen on: tcp://HOST:PORT, unix:///PATH or stdio://."
    )
    model: tuple[str, ...] = setting(
        (),
        "Models to serve: names such as qwen3-tts-0.6b-customvoice, repositories as owner/name, or "
        "directories of checkpoints or bundles; what is missing is fetched and built. Without any, "
        "the bundles that are found, or else the small embedded one.",
    )
    wait_for_model: float = setting(
        0.0,
        "Seconds that a request waits for a model that is still being fetched or built, before it "
        "is told how far that is.",
        minimum=0,
        maximum=3_600,
    )
    local_files_only: bool = setting(
        False, "Never use the network: build models only of what is on this machine."
    )
    keep_checkpoint: bool = setting(
        False, "Keep what was fetched for a build; the bundle alone is enough to serve."
    )
    data_dir: tuple[str, ...] = setting(
        (),
        "Directories that are searched for model bundles and the voice library, in this order; "
        "without any, the folder onnx of a source checkout, else the user's data folder.",
    )
    voice: str | None = setting(
        None, "Voice for requests that name none; null takes the first voice."
    )
    device: Literal["cpu", "cuda", "openvino"] = setting(
        "cpu",
        "Where the models run: cpu, cuda or openvino. The latter two need another build of "
        "onnxruntime, were never measured, and fall back to the CPU with a warning.",
    )
    precision: Literal["auto", "fp32", "fp16", "int8", "int4"] = setting(
        "auto",
        "Precision of the models' bundles: fp32, fp16, int8 or int4; auto takes what is there, and "
        "builds int8 for the CPU and fp16 for a GPU.",
    )
    threads: int = setting(
        0, "Processor threads for synthesis; 0 takes one for each core.", minimum=0, maximum=1_024
    )
    text_mode: Literal["sentences", "tokens"] = setting(
        "sentences",
        "How text that arrives in pieces is spoken: sentences, each an utterance of its own and "
        "several side by side; or tokens, all of it as one utterance that grows with the text, "
        "without seams. Voices cloned with a transcript are always spoken by sentences.",
    )
    lanes: int = setting(
        4,
        "Utterances that one model speaks side by side: sentences of one text, or several "
        "clients; the last is kept for the beginning of an answer. Each costs memory, and less "
        "time than it saves.",
        minimum=1,
        maximum=16,
    )
    memory_limit: int | None = setting(
        None,
        "Megabytes of model weights that may be open at once; the model unused longest is closed "
        "first. null keeps every model open.",
        minimum=1,
    )
    unload_after: float | None = setting(
        None,
        "Seconds after which a model that nobody uses is closed; the next request opens it again, "
        "which takes as long as the first time. null keeps models open.",
        minimum=0.1,
    )
    max_waiting: int = setting(
        64,
        "Requests of all clients that are spoken or wait to be spoken; more are told that the "
        "server is busy.",
        minimum=1,
    )
    streaming: bool = setting(
        True, "Tell clients that text may be sent piece by piece, as a language model writes it."
    )
    styles: tuple[str, ...] = setting(
        (
            "cheerful=Speak in a cheerful, bright tone.",
            "calm=Speak calmly and slowly, in a warm tone.",
            "whisper=Whisper softly, close to the listener.",
            "serious=Speak in a serious, matter-of-fact tone.",
        ),
        "Styles that clients may choose as the speaker of a voice, as NAME=INSTRUCTION; only for "
        "models that follow instructions. Any other speaker is taken as the instruction itself.",
    )
    languages: tuple[str, ...] = setting(
        (),
        "Languages that texts are in, such as de and en, where the request does not say it; "
        "without any, all that a voice speaks. Fewer are told apart better.",
    )
    keep_as_written: tuple[str, ...] = setting(
        (),
        "Rules that shall not be applied to texts: characters, code_blocks, html, "
        "stage_directions, markdown, links, emoji, dates, phone_numbers, ranges, times, symbols, "
        "currencies, units, ordinals, numbers, punctuation, closing; or all.",
    )
    seed: int | None = setting(
        None, "Number that makes speech repeatable; null draws a new one each time.", minimum=0
    )
    sampling: SamplingConfig = field(
        default_factory=SamplingConfig, metadata=section("How the model chooses.")
    )
    sentence_silence: float = setting(
        0.0, "Silence between sentences that are spoken apart, in seconds.", minimum=0, maximum=10
    )
    leading_silence: float = setting(
        0.0,
        "Silence before the speech, in seconds, for players that swallow the beginning.",
        minimum=0,
        maximum=10,
    )
    trailing_silence: float = setting(
        0.0,
        "Silence after the speech, in seconds, for players that swallow the end.",
        minimum=0,
        maximum=10,
    )
    hold_back: float = setting(
        4.0,
        "Where a model speaks slower than real time, the beginning of an answer is held back so "
        "that playback does not starve, at most this long, in seconds; 0 never holds back.",
        minimum=0,
        maximum=30,
    )
    zeroconf: str | None = setting(
        None,
        "Announce the server on the local network, so that Home Assistant finds it: false, true, "
        "or the name to announce.",
        when_true=AUTOMATIC_NAME,
    )
    allow: tuple[str, ...] = setting(
        (),
        "Networks whose clients are served, such as 192.168.1.0/24 or fd00::/8, besides this "
        "machine itself; without any, everybody who reaches the server.",
    )
    http: str | None = setting(
        None,
        "Address of a page with figures for Prometheus (/metrics) and of a health check (/health), "
        "as HOST:PORT, or PORT for this machine alone: false, true for 127.0.0.1:10280, or an "
        "address. For the networks of allow only.",
        when_true="127.0.0.1:10280",
    )
    debug: bool = setting(False, "Log debug messages, and tracebacks of unexpected failures.")
    log_format: str = setting(logging.BASIC_FORMAT, "Format of log lines, as in Python's logging.")
    limits: ConnectionLimits = field(
        default_factory=ConnectionLimits, metadata=section("What a client may cost.")
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and a flag for every setting; absent flags leave no trace."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=argparse.SUPPRESS,
        help="YAML file with settings, see server.example.yaml",
    )
    groups: dict[settings.Path, argparse._ArgumentGroup] = {}
    for known in settings.list_settings(ServerConfig):
        target: argparse._ActionsContainer = parser
        if outer := known.path[:-1]:
            if outer not in groups:
                doc = settings.section_doc(ServerConfig, outer)
                groups[outer] = parser.add_argument_group(".".join(outer), doc)
            target = groups[outer]
        _add_flag(target, known)


def load_config(arguments: argparse.Namespace, environment: Mapping[str, str]) -> ServerConfig:
    """Return the settings that flags, environment and file give together.

    Raises:
        ConfigError: A setting is unknown, of the wrong kind or out of range.
    """
    given = vars(arguments)
    file = given.get("config") or environment.get(_CONFIG_VARIABLE)
    values: dict[settings.Path, Any] = {}
    if file:
        values |= read_file(Path(file))
    values |= read_environment(environment)
    for known in settings.list_settings(ServerConfig):
        name = ".".join(known.path)
        if name in given:
            # What argparse gathers in a list was not yet checked as a whole.
            values[known.path] = known.check(given[name], flag_name(known))
    return settings.build_section(ServerConfig, values)


def read_file(path: Path) -> dict[settings.Path, Any]:
    """Return the checked settings of a YAML file.

    Raises:
        ConfigError: The file cannot be read, is no YAML, or holds a wrong setting.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings in {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is no YAML: {reason}") from error
    return settings.read_mapping(ServerConfig, values, str(path))


def read_environment(environment: Mapping[str, str]) -> dict[settings.Path, Any]:
    """Return the checked settings of environment variables.

    Raises:
        ConfigError: A value is of the wrong kind or out of range.
    """
    known = {variable_name(each): each for each in settings.list_settings(ServerConfig)}
    values: dict[settings.Path, Any] = {}
    for variable, text in environment.items():
        if variable in known:
            values[known[variable].path] = known[variable].parse(text, variable)
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable != _CONFIG_VARIABLE:
            # No error: Kubernetes sets variables like WYOMING_QWEN3TTS_SERVICE_HOST by itself.
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            _LOGGER.warning("No setting belongs to the variable %s%s", variable, hint)
    return values


def flag_name(known: Setting) -> str:
    """Return the flag of a setting."""
    return "--" + "-".join(known.path).replace("_", "-")


def flag_names() -> list[str]:
    """Return every flag that stands for a setting."""
    return [flag_name(known) for known in settings.list_settings(ServerConfig)]


def variable_name(known: Setting) -> str:
    """Return the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + "_".join(known.path).upper()


def render_example() -> str:
    """Return a YAML file with every setting, its default and what it is for."""
    lines = [_EXAMPLE_HEAD]
    opened: settings.Path = ()
    for known in settings.list_settings(ServerConfig):
        outer = known.path[:-1]
        if outer and outer != opened:
            lines += [f"# {settings.section_doc(ServerConfig, outer)}", f"{outer[-1]}:"]
        opened = outer
        indent = "  " * len(outer)
        doc = textwrap.wrap(known.doc, 98 - len(indent))
        lines += [f"{indent}# {line}" for line in doc]
        default = list(known.default) if known.kind is tuple else known.default
        if known.when_true is not None and default is None:
            default = False
        dumped = yaml.safe_dump(default, default_flow_style=True, width=1_000)
        value = dumped.removesuffix("\n").removesuffix("\n...")
        lines += [f"{indent}{known.path[-1]}: {value}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _add_flag(target: argparse._ActionsContainer, known: Setting) -> None:
    flag = flag_name(known)
    options: dict[str, Any] = {
        "dest": ".".join(known.path),
        "default": argparse.SUPPRESS,
        "help": f"{known.doc} (default: {_show(known.default)})".replace("%", "%%"),
    }
    if known.kind is bool:
        target.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        return

    def parse(text: str) -> Any:
        try:
            return text if known.kind is tuple else known.parse(text, "the value")
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    options |= {"type": parse, "metavar": known.path[-1].upper()}
    if known.kind is tuple:
        options["action"] = "append"
    if known.when_true is not None:
        options |= {"nargs": "?", "const": known.when_true, "metavar": "NAME"}
    target.add_argument(flag, **options)


def _show(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default is None else str(default)


if __name__ == "__main__":
    print(render_example(), end="")
