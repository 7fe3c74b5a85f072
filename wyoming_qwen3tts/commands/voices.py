"""``voices``: a table of the voices that the installed models offer."""

import argparse
import json

from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.models.references import find_bundle, installed_models
from wyoming_qwen3tts.voices.catalog import Catalog, CatalogVoice
from wyoming_qwen3tts.voices.library import VoiceLibrary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``voices``."""
    add_flags(parser, "models", "data_dirs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace, config: Config) -> int:
    """Print the table.

    Raises:
        Qwen3TTSError: A model is not installed or cannot be used.
    """
    data_dirs = config.data_paths
    bundles = [find_bundle(model, data_dirs) for model in config.models]
    bundles = bundles or installed_models(data_dirs)
    voices = Catalog(bundles, VoiceLibrary(data_dirs), {}).combine(VoiceLibrary(data_dirs).scan())
    if args.json:
        print(json.dumps([_row(voice) for voice in voices], indent=2, ensure_ascii=False))
        return 0
    rows = [["VOICE", "LANGUAGES", "MODEL", "DESCRIPTION"]]
    rows += [list(_row(voice).values()) for voice in voices]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    return 0


def _row(voice: CatalogVoice) -> dict[str, str]:
    return {
        "voice": voice.info.name,
        "languages": " ".join(voice.info.languages),
        "model": voice.bundle.reference,
        "description": voice.info.description,
    }
