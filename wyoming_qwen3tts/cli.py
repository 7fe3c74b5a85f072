"""The command line: serves, or hands over to a subcommand."""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.config import Config, add_flags, flag_names, load_config
from wyoming_qwen3tts.errors import ConfigError, Qwen3TTSError
from wyoming_qwen3tts.machine import why_unsupported
from wyoming_qwen3tts.settings import suggestion

_LOGGER = logging.getLogger(__name__)

PROGRAM: Final = "wyoming-qwen3tts"

COMMANDS: Final = {
    "build": ("wyoming_qwen3tts.builder.cli", "build a model bundle from an official checkpoint"),
    "health": ("wyoming_qwen3tts.commands.health", "ask whether a server is alive"),
    "models": ("wyoming_qwen3tts.commands.models", "list, fetch, build, check models"),
    "say": ("wyoming_qwen3tts.commands.say", "speak a text into a file or a pipe"),
    "status": ("wyoming_qwen3tts.commands.models", "show models, voices, and what is wrong"),
    "verify": ("wyoming_qwen3tts.builder.verify", "check a bundle, and compare its results"),
    "voice": ("wyoming_qwen3tts.commands.voice", "list, add, check, remove, design voices"),
}
"""Subcommand -> the module with ``add_arguments(parser)`` and ``run(arguments) -> int``, and help.

A module is imported only when its command is chosen: serving must not need what building needs.
"""

ALIASES: Final = {"status": ("models", "list"), "voices": ("voice", "list")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ALIASES:
        arguments[:1] = ALIASES[arguments[0]]
    try:
        if (reason := why_unsupported()) and not {"--version", "--help", "-h"} & {*arguments}:
            raise ConfigError(reason)
        if arguments and arguments[0] in COMMANDS:
            return _run_command(arguments[0], arguments[1:])
        return _serve(arguments)
    except Qwen3TTSError as error:
        _LOGGER.debug("Traceback", exc_info=error)
        print(f"error: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output has closed it; Python must not fail again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        _LOGGER.debug("Traceback", exc_info=error)
        subject = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or str(error) or type(error).__name__
        print(f"error: {subject}{reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run_command(name: str, arguments: Sequence[str]) -> int:
    module_name, help_line = COMMANDS[name]
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{name} needs the package {error.name}, which is not installed; "
            "pip install 'wyoming-qwen3tts[build]' brings what building needs"
        ) from error
    # A command may have a --debug of its own, which then takes the place of this one.
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {name}",
        description=f"{help_line[0].upper()}{help_line[1:]}.",
        conflict_handler="resolve",
    )
    parser.add_argument("--debug", action="store_true", help="log debug messages and tracebacks")
    module.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    code: int = module.run(parsed, _load_config(parsed))
    return code


def _serve(arguments: Sequence[str]) -> int:
    parser = make_parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(_explain(rest[0]))
    config = _load_config(parsed)
    from wyoming_qwen3tts.app import serve

    serve(config)
    return 0


def _load_config(parsed: argparse.Namespace) -> Config:
    # Warnings about the settings come before the settings are known.
    set_up_logging(is_debug=False)
    config = load_config(parsed, os.environ)
    set_up_logging(is_debug=config.debug or bool(getattr(parsed, "debug", False)))
    return config


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that serve."""
    commands = "\n".join(f"  {name:8} {help_line}" for name, (_, help_line) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [FLAG ...]\n       {PROGRAM} {{{','.join(COMMANDS)}}} ...",
        description="Wyoming text-to-speech server for the Qwen3-TTS models.",
        epilog=f"commands (each has its own --help):\n{commands}",
        formatter_class=partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=34, width=100
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    add_flags(parser)
    return parser


def set_up_logging(*, is_debug: bool) -> None:
    """Send log lines to the standard error stream: standard output may be the wire."""
    level = logging.DEBUG if is_debug else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    logging.basicConfig(level=level, format=logging.BASIC_FORMAT, handlers=[handler], force=True)


def _explain(unknown: str) -> str:
    if unknown in COMMANDS:
        return f"the command comes first: {PROGRAM} {unknown} ..."
    if unknown.startswith("-"):
        return f"unknown flag {unknown}" + suggestion(unknown.split("=")[0], flag_names())
    hint = suggestion(unknown, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
    return f"unknown command {unknown!r}{hint}"
