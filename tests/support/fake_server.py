"""A whole server whose voice is scripted: ``python -m tests.support.fake_server URI FRAME_S``."""

import sys
from contextlib import asynccontextmanager

from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.app import serve
from wyoming_qwen3tts.cli import set_up_logging
from wyoming_qwen3tts.config import Config


def main() -> None:
    uri, frame_s = sys.argv[1:]

    @asynccontextmanager
    async def create_source(_config):
        yield FakeSpeechSource(frame_s=float(frame_s))

    set_up_logging(is_debug=False)
    serve(Config(uri=uri, shutdown_timeout=0.5), create_source)


if __name__ == "__main__":
    main()
