"""Asks a running server whether it can speak, for the health check of a container.

Exit code 0: it can, or its first model is still being fetched or built. Exit code 1: it cannot.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from wyoming.client import AsyncClient
from wyoming.event import Event
from wyoming.info import Describe, Info

from wyoming_qwen3tts.config import Config, add_flags, is_given
from wyoming_qwen3tts.errors import ConfigError, Qwen3TTSError

_WILDCARD_HOSTS: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - not to bind
_MAIN_PROCESS: Final = Path("/proc/1/cmdline")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``health``."""
    add_flags(parser, "uri")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds (%(default)s)")


def run(args: argparse.Namespace, config: Config) -> int:
    """Print the health of the server; returns the exit code."""
    uri = config.uri if is_given(args, "uri") else _container_uri() or config.uri
    try:
        health = asyncio.run(_ask(uri, args.timeout, Event("health")))
    except (OSError, Qwen3TTSError) as error:
        print(f"error: {uri}: {error}", file=sys.stderr)
        return 1
    status = health.data.get("status")
    print(f"wyoming-qwen3tts {health.data.get('version')}: {status}")
    return 0 if status in {"ok", "starting", "installing"} else 1


async def ask_server(uri: str, timeout_s: float) -> Info:
    """Return what a server offers; raises ConfigError, and OSError without such an answer."""
    answer = await _ask(uri, timeout_s, Describe().event())
    if not Info.is_type(answer.type) or not (info := Info.from_event(answer)).tts:
        raise ConnectionError(f"the server offers no speech ({answer.type}: {answer.data})")
    return info


async def _ask(uri: str, timeout_s: float, question: Event) -> Event:
    parts = urlsplit(uri)
    if parts.scheme == "stdio":
        raise ConfigError("a server on stdio:// cannot be asked by another program")
    if (host := _WILDCARD_HOSTS.get(parts.hostname or "")) is not None:
        uri = f"{parts.scheme}://{host}:{parts.port}"
    try:
        client = AsyncClient.from_uri(uri)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        async with asyncio.timeout(timeout_s), client:
            await client.write_event(question)
            if (answer := await client.read_event()) is None:
                raise ConnectionError("the server closed the connection")
            return answer
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from error


def _container_uri() -> str | None:
    """Return the --uri that the main process of a container was started with."""
    try:
        arguments = _MAIN_PROCESS.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if not any(Path(argument).name == "wyoming-qwen3tts" for argument in arguments):
        return None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--uri")
    uri: str | None = parser.parse_known_args(arguments)[0].uri
    return uri
