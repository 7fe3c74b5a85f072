"""Command line of ``script/parity`` and ``script/parity record``."""

import argparse
import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.parity.comparison import (
    OfficialRun,
    SubjectFactory,
    compare_parts,
    compare_speech,
    compare_tokens,
    parts_table,
    speech_table,
)
from tests.parity.environment import ROOT, run_official, write_checkpoints
from tests.parity.golden import write_golden
from tests.parity.oracle_subject import OracleSubject
from tests.parity.product_subject import ProductSubject, open_product
from tests.parity.subject import Subject
from tests.support.tiny_checkpoint import TINY_CHECKPOINTS
from wyoming_qwen3tts.runtime.speech_model import SpeechModel

NUM_LANES = 4
GOLDEN = ROOT / "tests" / "golden"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or record; return the exit status."""
    parser = argparse.ArgumentParser(prog="parity", description=__doc__)
    parser.add_argument("action", choices=("compare", "record"))
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="work here (seen from the project's root), and take what an earlier run left",
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep.resolve() if options.keep else Path(temporary)
        write_checkpoints(directory / "checkpoints")
        run = _official(directory)
        if options.action == "record":
            for path in write_golden(run, GOLDEN):
                print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
            return 0
        return _compare(run, directory)


def _official(directory: Path) -> OfficialRun:
    output = directory / "official"
    if (output / "official.json").exists():
        return OfficialRun.read(output)
    return run_official(directory / "checkpoints", output)


def _compare(run: OfficialRun, directory: Path) -> int:
    subjects = _subjects(directory)
    scores = {name: compare_speech(run, subject_of) for name, subject_of in subjects.items()}
    single = {name: subject_of for name, subject_of in subjects.items() if "lanes" not in name}
    parts = {name: compare_parts(run, subject_of) for name, subject_of in single.items()}
    some_checkpoint = directory / "checkpoints" / next(iter(TINY_CHECKPOINTS))
    tokens, tokens_equal = compare_tokens(run, some_checkpoint)
    versions = ", ".join(f"{name} {version}" for name, version in run.results["versions"].items())
    print(f"Greedy parity with the official package ({versions}), float32, tiny checkpoints.\n")
    print(speech_table(scores))
    print()
    print(parts_table(parts))
    print(f"\nText tokenizer: {tokens}.")
    good = tokens_equal
    good &= all(score.is_perfect for rows in scores.values() for score in rows.values())
    good &= all(is_good for rows in parts.values() for _, is_good in rows.values())
    print("\nAll equal." if good else "\nThere are differences.")
    return 0 if good else 1


def _subjects(directory: Path) -> dict[str, SubjectFactory]:
    checkpoints, bundles = directory / "checkpoints", directory / "bundles"

    @functools.cache
    def oracle(name: str) -> Subject:
        return OracleSubject(checkpoints / name)

    @functools.cache
    def model(name: str) -> SpeechModel:
        return open_product(checkpoints / name, bundles / name)

    @functools.cache
    def product(name: str) -> Subject:
        return ProductSubject(model(name))

    @functools.cache
    def product_in_lanes(name: str) -> Subject:
        return ProductSubject(model(name), num_lanes=NUM_LANES)

    return {
        "oracle": oracle,
        "product": product,
        f"product, {NUM_LANES} lanes": product_in_lanes,
    }


if __name__ == "__main__":
    sys.exit(main())
