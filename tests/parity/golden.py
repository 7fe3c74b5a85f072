"""Write and read the small part of an official run that the test-suite carries along."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.parity import cases
from tests.parity.cases import Case
from tests.parity.comparison import OfficialRun

CODES_FILE = "official_codes.json"
TOKENS_FILE = "official_tokens.json"
# Every so many samples of the decoder's output; odd, so that no upsampling factor hides in it.
SAMPLE_STEP = 61
_DECIMALS = 6


def write_golden(run: OfficialRun, directory: Path) -> list[Path]:
    """Write both files and return their paths."""
    provenance = {
        "made by": "script/parity record, from the official package over seeded tiny checkpoints",
        "versions": run.results["versions"],
        "seed": run.results["seed"],
        "max_new_tokens": cases.MAX_NEW_TOKENS,
    }
    codes = {
        "provenance": provenance,
        "cases": [_compact(entry) for entry in run.results["cases"]],
        "decoder_samples": _rounded(run.arrays["decoder_samples"][::SAMPLE_STEP]),
        "encoder_codes": run.results["encoder_codes"],
        "x_vectors": {
            name.removeprefix("x_vector_"): _rounded(vector)
            for name, vector in run.arrays.items()
            if name.startswith("x_vector_")
        },
    }
    tokens = {"provenance": provenance, "texts": run.results["tokens"]}
    paths = [directory / CODES_FILE, directory / TOKENS_FILE]
    for path, content in zip(paths, (codes, tokens), strict=True):
        path.write_text(_lines(content), encoding="utf-8")
    return paths


def read_case(entry: dict[str, Any]) -> Case:
    """Return the case of a recorded entry."""
    return Case(**{key: value for key, value in entry.items() if key != "codes"})


def _compact(entry: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a case does not ask for."""
    return {key: value for key, value in entry.items() if value not in (None, 0)}


def _rounded(values: Any) -> list[float]:
    rounded: list[float] = np.round(values.astype(np.float64), _DECIMALS).tolist()
    return rounded


def _lines(content: dict[str, Any]) -> str:
    """Return JSON with one line per entry, so that a change shows as few changed lines."""
    parts = []
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n".join(_dense(entry) for entry in value)
            parts.append(f"{json.dumps(key)}: [\n{entries}\n]")
        elif isinstance(value, dict):
            entries = ",\n".join(
                f"{json.dumps(name)}: {_dense(part)}" for name, part in value.items()
            )
            parts.append(f"{json.dumps(key)}: {{\n{entries}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {_dense(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _dense(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
