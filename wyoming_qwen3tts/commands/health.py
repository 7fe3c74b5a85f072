"""Asks a running server to describe itself: exit code 0 if it does, 1 if not.

For a container's HEALTHCHECK: ``python -m wyoming_qwen3tts.commands.health``.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from wyoming.event import async_read_event, async_write_event
from wyoming.info import Describe, Info

from wyoming_qwen3tts.config import Config, add_flags, load_config
from wyoming_qwen3tts.errors import ConfigError, Qwen3TTSError
from wyoming_qwen3tts.protocol.server import parse_uri

# A server that listens on every address is reached on the loopback one.
_REACHABLE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not to bind
_STREAM_LIMIT_BYTES: Final = 1_048_576


async def ask_server(uri: str, timeout_s: float) -> Info:
    """Return how a running server describes itself.

    Raises:
        ConfigError: The address cannot be asked.
        OSError: Nobody answers in time, or the answer is another one; includes TimeoutError.
    """
    address = parse_uri(uri)
    async with asyncio.timeout(timeout_s):
        if address.scheme == "tcp":
            host = _REACHABLE.get(address.host, address.host)
            reader, writer = await asyncio.open_connection(
                host, address.port, limit=_STREAM_LIMIT_BYTES
            )
        elif address.scheme == "unix":
            reader, writer = await asyncio.open_unix_connection(
                address.path, limit=_STREAM_LIMIT_BYTES
            )
        else:
            raise ConfigError("a server on stdio:// cannot be asked by another program")
        try:
            await async_write_event(Describe().event(), writer)
            event = await async_read_event(reader)
        finally:
            writer.close()
    if event is None or not Info.is_type(event.type):
        raise ConnectionError("the answer was no info event")
    info = Info.from_event(event)
    if not info.tts:
        raise ConnectionError("the server offers no speech")
    return info


async def check_health(uri: str, timeout_s: float) -> str:
    """Return the name and version of the program that answers.

    Raises:
        ConfigError: The address cannot be asked.
        OSError: Nobody answers in time; includes TimeoutError.
    """
    program = (await ask_server(uri, timeout_s)).tts[0]
    return f"{program.name} {program.version}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``health``."""
    add_flags(parser, "uri")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds (%(default)s)")


def run(args: argparse.Namespace, config: Config) -> int:
    """Run the check and print what came of it."""
    try:
        print(asyncio.run(check_health(config.uri, args.timeout)))
    except (OSError, Qwen3TTSError) as error:
        print(f"error: {config.uri}: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check as a program of its own."""
    parser = argparse.ArgumentParser(prog="health_check", description="Is the server alive?")
    add_arguments(parser)
    args = parser.parse_args(argv)
    return run(args, load_config(args, os.environ))


if __name__ == "__main__":
    sys.exit(main())
