"""A whole server whose voice is scripted.

``python -m tests.support.fake_server URI FRAME_S [HANGS]``; HANGS says what hangs at its end:
``loop`` or ``thread``.
"""

import logging
import sys
import threading
import time
from contextlib import asynccontextmanager

from tests.support.fakes import FakeSpeechSource
from wyoming_qwen3tts.app import serve
from wyoming_qwen3tts.config import Config


def main() -> None:
    uri, frame_s, hangs = sys.argv[1:]

    @asynccontextmanager
    async def create_source(_config):
        yield FakeSpeechSource(frame_s=float(frame_s))
        if hangs == "loop":
            time.sleep(60)  # noqa: ASYNC251 - that is the point
        elif hangs == "thread":
            threading.Thread(target=time.sleep, args=(60,)).start()

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    serve(Config(uri=uri, shutdown_timeout=0.5), create_source)


if __name__ == "__main__":
    main()
