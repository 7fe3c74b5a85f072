"""What can be said of a bundle without its checkpoint: files, graphs, tables, and the manifest."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.builder.bundle_writer import sha256_of
from wyoming_qwen3tts.builder.checkpoint import TOKENIZER_FILES
from wyoming_qwen3tts.builder.components import CLONING, COMPONENTS
from wyoming_qwen3tts.builder.tables import CODEC_EMBEDDING, GROUP_EMBEDDING, TEXT_EMBEDDING
from wyoming_qwen3tts.builder.verify.census import GraphCensus, coarsest, read_census
from wyoming_qwen3tts.builder.verify.parts import OwnParts, Parts
from wyoming_qwen3tts.builder.verify.report import VerifyReport
from wyoming_qwen3tts.errors import BundleError, Qwen3TTSError
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME, Manifest, read_manifest

Tell = Callable[[str], None]
"""Told what is being done, for a person who waits."""

_LANGUAGE: Final = ("talker", "code_predictor")
_TABLES: Final = (TEXT_EMBEDDING, CODEC_EMBEDDING, GROUP_EMBEDDING)
_TABLE_TYPES: Final = {"float16": "fp16", "float32": "fp32"}
# Component, part -> names of its weights.
_PART_WEIGHTS: Final = {
    ("talker", "layers"): "layers.*_proj",
    ("talker", "head"): "codec_head",
    ("code_predictor", "layers"): "layers.*_proj",
    ("code_predictor", "heads"): "lm_head.*",
    ("code_predictor", "projection"): "small_to_mtp_projection",
}


def check_own_structure(
    directory: Path, report: VerifyReport, num_threads: int, tell: Tell
) -> OwnParts | None:
    """Check a bundle of our own layout; return its parts, None if its manifest cannot be read."""
    try:
        manifest = read_manifest(directory)
    except Qwen3TTSError as error:
        report.component("manifest").problems.append(str(error))
        return None
    report.name, report.device, report.recipe = manifest.name, manifest.device, manifest.recipe
    report.component("manifest")
    components = ["tokenizer", "embeddings", *_LANGUAGE, "codec_decoder"]
    if manifest.facts.model_type == "base":
        components += CLONING
    for component in components:
        report.component(component)
    _check_files(directory, manifest, report, tell)
    facts = manifest.facts
    parts = OwnParts(directory, facts, manifest.talker.max_positions, num_threads)
    for component in components:
        tell(f"opening {component}")
        _check_component(component, parts, manifest, report)
    return parts


def component_of(path: str) -> str:
    """Return the component that a file of our own layout belongs to."""
    if path in TOKENIZER_FILES:
        return "tokenizer"
    for name, component in COMPONENTS.items():
        if path in component.files:
            return name
    return "manifest"


def open_part(parts: Parts, component: str) -> Any:
    """Open a part by the component's name.

    Raises:
        BundleError: It cannot be opened.
    """
    return getattr(parts, component)()


def _check_files(directory: Path, manifest: Manifest, report: VerifyReport, tell: Tell) -> None:
    """Compare every size and hash with those that the manifest states."""
    for file in manifest.files:
        path = directory / file.path
        tell(f"hashing {file.path}")
        report.num_files += 1
        report.num_bytes += file.bytes
        problems = report.component(component_of(file.path)).problems
        try:
            size = path.stat().st_size
            if size != file.bytes:
                problems.append(f"{file.path} has {size} bytes, the manifest states {file.bytes}")
            elif (digest := sha256_of(path)) != file.sha256:
                problems.append(
                    f"{file.path} has the SHA-256 {digest}, the manifest states {file.sha256}"
                )
            else:
                report.num_hashed += 1
        except OSError as error:
            problems.append(f"{file.path} cannot be read ({error.strerror})")
    stated = {file.path for file in manifest.files} | {MANIFEST_NAME}
    others = sorted(path.name for path in directory.iterdir() if path.name not in stated)
    if others:
        report.component("manifest").notes.append(f"not in the manifest: {', '.join(others)}")


def _check_component(
    component: str, parts: OwnParts, manifest: Manifest, report: VerifyReport
) -> None:
    """Open a component as the server does, and compare it with what the manifest says."""
    entry = report.component(component)
    try:
        open_part(parts, component)
        if component == "embeddings":
            _check_tables(parts.directory, manifest, report)
        elif component == "tokenizer":
            entry.problems += _template_problems(parts)
        else:
            census = read_census(parts.directory / f"{component}.onnx")
            entry.graphs.append(census)
            entry.precision = coarsest(census.precisions)
            entry.problems += _shape_problems(component, census, manifest)
            entry.problems += _precision_problems(component, census, manifest)
    except Qwen3TTSError as error:
        entry.problems.append(str(error))
    except Exception as error:  # noqa: BLE001 - what a damaged file raises is the verdict on it
        entry.problems.append(f"cannot be opened: {error or type(error).__name__}")


def _template_problems(parts: OwnParts) -> list[str]:
    ids = parts.facts.text_ids
    wanted = [ids.im_start, ids.assistant]
    given = parts.tokenizer().encode_template("<|im_start|>assistant\n")
    if given[:2] == wanted:
        return []
    return [f"reads the prompt's template as {given}, which should begin with {wanted}"]


def _check_tables(directory: Path, manifest: Manifest, report: VerifyReport) -> None:
    entry, facts = report.component("embeddings"), manifest.facts
    tables = {name: _mapped(directory / name) for name in _TABLES}
    ids = facts.codec_ids
    special = (ids.pad, ids.bos, ids.eos, *facts.languages.values(), *facts.speakers.values())
    least_rows = {
        TEXT_EMBEDDING: max(vars(facts.text_ids).values()) + 1,
        CODEC_EMBEDDING: max(special) + 1,
        GROUP_EMBEDDING: facts.num_code_groups - 1,
    }
    for name, table in tables.items():
        if table.shape[-1] != facts.hidden_size:
            entry.problems.append(
                f"{name} has rows of width {table.shape[-1]}, the model's are {facts.hidden_size}"
            )
        if len(table) < least_rows[name]:
            entry.problems.append(
                f"{name} has {len(table)} rows, at least {least_rows[name]} are needed"
            )
    groups = tables[GROUP_EMBEDDING].shape[:2]
    if groups != (facts.num_code_groups - 1, facts.codebook_size):
        entry.problems.append(
            f"{GROUP_EMBEDDING} is for {groups[0]} groups of {groups[1]} codes, the model has "
            f"{facts.num_code_groups - 1} groups of {facts.codebook_size}"
        )
    found = {_TABLE_TYPES.get(table.dtype.name, table.dtype.name) for table in tables.values()}
    entry.precision = coarsest(found)
    claimed = set(manifest.precision.get("embeddings", {}).values())
    if found != claimed:
        entry.problems.append(
            f"the tables are in {_listed(found)}, the manifest says {_listed(claimed)}"
        )


def _mapped(path: Path) -> AnyArray:
    try:
        table: AnyArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BundleError(f"{path} cannot be read: {error}.") from error
    return table


def _shape_problems(component: str, census: GraphCensus, manifest: Manifest) -> list[str]:
    """Compare the sizes of inputs and outputs with the manifest's facts."""
    facts, layout = manifest.facts, manifest.talker
    groups, width = facts.num_code_groups, facts.hidden_size
    wanted: dict[str, list[tuple[str, int, int]]] = {
        "talker": [
            ("embeddings", 2, width),
            ("logits", 1, facts.codebook_size + 1),
            ("hidden", 1, width),
            ("past_key_0", 1, layout.num_kv_heads),
            ("past_key_0", 3, layout.head_size),
        ],
        "code_predictor": [
            ("hidden", 1, width),
            ("uniforms", 1, groups - 1),
            ("group_logits", 1, groups - 1),
            ("group_logits", 2, facts.codebook_size),
        ],
        "codec_decoder": [("codes", 1, groups)],
        "codec_encoder": [("codes", 1, groups)],
        "speaker_encoder": [("x_vector", 0, width)],
    }
    values = {**census.inputs, **census.outputs}
    problems = []
    for name, axis, size in wanted[component]:
        shape = values.get(name, ())
        given = shape[axis] if axis < len(shape) else None
        # A size that is open or not stated is checked by running the graph.
        if isinstance(given, int) and given != size:
            problems.append(f"{name} has the size {given} along axis {axis}, not {size}")
    if component == "talker":
        problems += _cache_problems(census, manifest)
    return problems


def _cache_problems(census: GraphCensus, manifest: Manifest) -> list[str]:
    layout, problems = manifest.talker, []
    num_layers = sum(name.startswith("past_key_") for name in census.inputs)
    if num_layers != layout.num_layers:
        problems.append(f"has {num_layers} layers, the manifest says {layout.num_layers}")
    cache_type = census.input_types.get("past_key_0")
    if cache_type != layout.cache_type:
        problems.append(f"keeps a cache in {cache_type}, the manifest says {layout.cache_type}")
    rotary = census.tensors.get("rotary.cosines")
    if rotary is not None and rotary.shape[0] != layout.max_positions:
        problems.append(
            f"knows {rotary.shape[0]} positions, the manifest says {layout.max_positions}"
        )
    return problems


def _precision_problems(component: str, census: GraphCensus, manifest: Manifest) -> list[str]:
    """Compare the precision of each part with what the manifest says of it."""
    claimed = manifest.precision.get(component)
    if not claimed:
        return [f"the manifest does not say in which precision {component} is"]
    if component not in _LANGUAGE:
        found = coarsest(census.precisions)
        wanted = coarsest(set(claimed.values()))
        return [] if found == wanted else [f"is in {found}, the manifest says {wanted}"]
    problems = []
    for part, precision in claimed.items():
        pattern = _PART_WEIGHTS.get((component, part), part)
        found_set = weight_precisions(census, pattern)
        # A projection is only there where the talker is wider than the code predictor.
        if found_set and found_set != {precision}:
            problems.append(f"{part} is in {_listed(found_set)}, the manifest says {precision}")
    return problems


def weight_precisions(census: GraphCensus, pattern: str) -> set[str]:
    """Return the precisions of the weights whose names match a pattern."""
    types = {"float32": "fp32", "float16": "fp16"}
    found = {
        f"int{weight.bits}"
        for name, weight in census.block_weights.items()
        if fnmatchcase(name, pattern)
    }
    for name, tensor in census.tensors.items():
        # Its blocks and scales have other names than the weight.
        if fnmatchcase(name, pattern) and not name.endswith((".blocks", ".scales")):
            found.add(types.get(tensor.dtype, tensor.dtype))
    return found


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
