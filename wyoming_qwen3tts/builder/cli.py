"""The command ``wyoming-qwen3tts build``: a checkpoint in, a bundle out."""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from tqdm import tqdm

from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle, default_output
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.recipe import (
    DEFAULT_PRECISION,
    PRECISIONS,
    load_recipe,
    uniform_recipe,
)
from wyoming_qwen3tts.config import Config, add_flags

_MEGABYTE: Final = 1_000_000
_BAR: Final = "{desc:<16} {percentage:3.0f}% |{bar}| {elapsed}<{remaining}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="directory of a downloaded Qwen3-TTS checkpoint (the one that has config.json)",
    )
    group = parser.add_mutually_exclusive_group()
    help_text = f"of the weights (default: {DEFAULT_PRECISION})"
    group.add_argument("--precision", choices=PRECISIONS, help=help_text)
    help_text = "YAML file with a precision for each part"
    group.add_argument("--recipe", type=Path, metavar="FILE", help=help_text)
    parser.add_argument(
        "--codec",
        choices=("fp32", "int8"),
        help="precision of the codec decoder; int8 is faster, fp32 exact (default: fp32)",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="the bundle's own directory")
    add_flags(parser, "data_dirs")
    parser.add_argument("--name", help="name of the model (default: that of its repository)")
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")


def run(args: argparse.Namespace, config: Config) -> int:
    """Build as the arguments say; return the exit status."""
    started = time.monotonic()
    precision = args.precision or DEFAULT_PRECISION
    recipe = load_recipe(args.recipe) if args.recipe else uniform_recipe(precision)
    if args.codec is not None:
        recipe = replace(recipe, codec_decoder=args.codec)
    options = BuildOptions(recipe, args.force, args.name)
    output = args.output or default_output(
        Checkpoint.open(args.checkpoint), options, config.data_paths[0]
    )
    with tqdm(total=1.0, bar_format=_BAR, disable=not sys.stderr.isatty(), leave=False) as bar:

        def show(stage: str, fraction: float) -> None:
            bar.set_description_str(stage, refresh=False)
            bar.update(fraction - bar.n)

        build_bundle(args.checkpoint, output, options, show)
    num_bytes = sum(path.stat().st_size for path in output.iterdir())
    seconds = time.monotonic() - started
    print(f"{output}: {num_bytes / _MEGABYTE:.0f} MB in {seconds:.1f} s")
    return 0
