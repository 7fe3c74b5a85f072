"""Command line of ``python -m tests.support.random_checkpoint``."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from tqdm import tqdm

from tests.support.random_checkpoint import (
    ModelSize,
    Preset,
    RandomCheckpoint,
    RandomCheckpointRecipe,
)
from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import ModelType


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one checkpoint; return the exit status."""
    options = _parser().parse_args(arguments)
    started_s = time.monotonic()
    try:
        recipe = RandomCheckpointRecipe(
            model_type=options.type,
            model_size=options.size,
            preset=options.preset,
            seed=options.seed,
            num_code_groups=options.code_groups,
            eos_gain=options.eos_gain,
        )
        checkpoint = RandomCheckpoint(recipe)
        with tqdm(
            total=checkpoint.num_bytes,
            unit="B",
            unit_scale=True,
            disable=options.preset == "tiny" or not sys.stderr.isatty(),
        ) as progress:
            checkpoint.write(options.output, progress.update)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    elapsed_s = time.monotonic() - started_s
    print(f"{options.output}: {checkpoint.num_bytes / 1e6:.1f} MB in {elapsed_s:.1f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = RandomCheckpointRecipe()
    parser = argparse.ArgumentParser(
        prog="make_checkpoint",
        description="Write a checkpoint of seeded random weights in the official layout. It speaks "
        "noise, but builds and runs like a real one.",
    )
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="a directory yet to be made")
    parser.add_argument("--size", choices=get_args(ModelSize), default=defaults.model_size)
    parser.add_argument("--type", choices=get_args(ModelType), default=defaults.model_type)
    parser.add_argument(
        "--preset",
        choices=get_args(Preset),
        default="real",
        help="the published dimensions (2.5 or 4.5 GB) or tiny ones (2.5 MB); default: real",
    )
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument(
        "--code-groups", type=int, default=defaults.num_code_groups, help="default: 16"
    )
    parser.add_argument(
        "--eos-gain",
        type=float,
        default=defaults.eos_gain,
        help="factor on the end-of-speech row; 0 speaks until the limit; default: 2.2",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
