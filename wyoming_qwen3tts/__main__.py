"""``python -m wyoming_qwen3tts``."""

import sys

from wyoming_qwen3tts.cli import main

sys.exit(main())
