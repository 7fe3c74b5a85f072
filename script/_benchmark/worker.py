"""The measuring side: one process for one subject, so that memory and threads are its own.

The process reads a line of JSON for each measurement and answers with one. While it waits, it uses
no processor time, so several workers can take turns.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from script._benchmark.noise import CpuMeter, peak_rss_mb

SUBJECTS: Final[Mapping[str, tuple[str, str]]] = {
    "machine": ("machine", "MachineSubject"),
    "speech": ("speech", "SpeechSubject"),
    "published": ("published", "PublishedSubject"),
    "component": ("components", "ComponentSubject"),
    "codec_comparison": ("codec_comparison", "CodecComparisonSubject"),
}
"""Kind of subject -> its module and class.

Only the subject's own module is imported, because what is imported counts as its memory. All take
``num_threads`` and settings of their own; ``run`` takes a task and its arguments, carries out one
measurement, and returns its figures, ready for JSON.
"""


def main(arguments: list[str]) -> int:
    """Serve one subject until standard input ends.

    Args:
        arguments: The kind of subject and its settings as JSON.
    """
    kind, settings = arguments
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, name = SUBJECTS[kind]
    subject_class: Any = getattr(importlib.import_module(f"script._benchmark.{module}"), name)
    subject = subject_class(**_with_paths(json.loads(settings)))
    for line in sys.stdin:
        request = json.loads(line)
        meter = CpuMeter()
        figures = dict(subject.run(request.pop("task"), **request))
        figures["foreign_cpu"] = meter.foreign_share()
        figures["peak_rss_mb"] = peak_rss_mb()
        print(json.dumps(figures), file=answers, flush=True)
    return 0


def _with_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Turn the values of keys that end in ``directory`` into paths."""
    return {
        key: Path(value) if key.endswith("directory") else value for key, value in settings.items()
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
