"""onnxruntime must not report the use of the server to anybody."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_OPEN_A_BUNDLE = """
import sys
from pathlib import Path
from wyoming_qwen3tts.runtime.bundle import open_bundle
open_bundle(Path(sys.argv[1]), 1)
"""


def test_nothing_is_collected_about_the_user(
    tiny_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    kept = {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH"}
    environment = {name: value for name, value in os.environ.items() if name in kept}

    subprocess.run(
        [sys.executable, "-c", _OPEN_A_BUNDLE, str(tiny_bundle("0.6B-custom_voice"))],
        env=environment | {"HOME": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        check=True,
    )

    # Where it collects, it leaves a device id and a database of events in the user's cache.
    assert list(tmp_path.rglob("*")) == []
