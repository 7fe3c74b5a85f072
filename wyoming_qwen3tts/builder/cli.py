"""The command ``wyoming-qwen3tts build``: a checkpoint in, a bundle out."""

import argparse
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from tqdm import tqdm

from wyoming_qwen3tts.builder.build import COMPONENTS, BuildOptions, build_bundle, default_output
from wyoming_qwen3tts.builder.checkpoint import Checkpoint
from wyoming_qwen3tts.builder.recipe import (
    DEFAULT_PRECISION,
    PRECISIONS,
    load_recipe,
    uniform_recipe,
)
from wyoming_qwen3tts.config import Config, add_flags

_KILOBYTE: Final = 1024
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
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument(
        "--precision", choices=PRECISIONS, help=f"of the weights (default: {DEFAULT_PRECISION})"
    )
    precision.add_argument(
        "--recipe", type=Path, metavar="FILE", help="YAML file with a precision for each part"
    )
    parser.add_argument(
        "--codec",
        choices=("fp32", "int8"),
        help="precision of the codec decoder; int8 is faster, fp32 exact (default: fp32)",
    )
    parser.add_argument(
        "--components",
        type=_component_names,
        default=(),
        metavar="A,B",
        help=f"rebuild only these in an existing bundle: {', '.join(COMPONENTS)}",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="the bundle's own directory")
    add_flags(parser, "data_dirs")
    parser.add_argument("--name", help="name of the model (default: that of its repository)")
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")


def run(args: argparse.Namespace, config: Config) -> int:
    """Build as the arguments say; return the exit status.

    Raises:
        BuildError: The bundle cannot be built.
    """
    started = time.monotonic()
    recipe = (
        load_recipe(args.recipe)
        if args.recipe
        else uniform_recipe(args.precision or DEFAULT_PRECISION)
    )
    if args.codec is not None:
        recipe = replace(recipe, codec_decoder=args.codec)
    options = BuildOptions(recipe, args.components, args.force, args.name)
    output = args.output or default_output(
        Checkpoint.open(args.checkpoint), options, config.data_paths[0]
    )
    with tqdm(total=1.0, bar_format=_BAR, disable=not sys.stderr.isatty(), leave=False) as bar:

        def show(stage: str, fraction: float) -> None:
            bar.set_description_str(stage, refresh=False)
            bar.update(fraction - bar.n)

        build_bundle(args.checkpoint, output, options, show)
    seconds = time.monotonic() - started
    num_bytes = sum(path.stat().st_size for path in output.iterdir())
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTE
    print(
        f"{output}: {num_bytes / _MEGABYTE:.0f} MB in {seconds:.1f} s, "
        f"{peak_bytes / _MEGABYTE:.0f} MB of memory at most"
    )
    return 0


def _component_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in COMPONENTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"unknown component {', '.join(unknown) or text!r}; known: {', '.join(COMPONENTS)}"
        )
    return names
