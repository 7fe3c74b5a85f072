"""``python -m wyoming_qwen3tts``."""

import sys

from wyoming_qwen3tts.server.cli import main

sys.exit(main())
