"""The same for a bundle of the published layout, whose manifest states neither sizes nor hashes."""

from pathlib import Path
from typing import Final

from wyoming_qwen3tts.builder.verify.census import coarsest, read_census
from wyoming_qwen3tts.builder.verify.parts import PublishedParts
from wyoming_qwen3tts.builder.verify.report import VerifyReport
from wyoming_qwen3tts.builder.verify.structure import Tell
from wyoming_qwen3tts.errors import Qwen3TTSError
from wyoming_qwen3tts.runtime.onnx_community.files import PublishedFiles, read_published_files
from wyoming_qwen3tts.runtime.session import open_session

# Graph -> component.
_GRAPHS: Final = {
    "text_embed": "embeddings",
    "codec_embed": "embeddings",
    "residual_embed": "embeddings",
    "talker_cache": "talker",
    "code_predictor": "code_predictor",
    "tok_decoder": "codec_decoder",
    "tok_encoder": "codec_encoder",
    "speaker_encoder": "speaker_encoder",
}
_CLONING: Final = ("codec_encoder", "speaker_encoder")


def check_published_structure(
    directory: Path,
    checkpoint: Path | None,
    report: VerifyReport,
    num_threads: int,
    tell: Tell,
) -> PublishedParts | None:
    """Check the bundle; return its parts, None if it cannot be opened as a whole."""
    manifest = report.component("manifest")
    try:
        files = read_published_files(directory, checkpoint)
    except Qwen3TTSError as error:
        manifest.problems.append(str(error))
        return None
    manifest.notes.append("states no sizes and hashes: files are checked by opening them only")
    report.name = files.name
    report.device = "cuda" if "CUDA" in files.execution_provider else "cpu"
    report.recipe = directory.name.rsplit("_", 1)[-1]
    sizes = [path.stat().st_size for path in directory.iterdir() if path.is_file()]
    report.num_files, report.num_bytes = len(sizes), sum(sizes)
    report.component("tokenizer")
    can_clone = files.facts.model_type == "base"
    for graph, component in _GRAPHS.items():
        if can_clone or component not in _CLONING:
            tell(f"opening {graph}")
            _check_graph(graph, component, files, report, num_threads)
    parts = PublishedParts(directory, files.facts, files.checkpoint_directory, num_threads)
    try:
        parts.tokenizer()
    except Qwen3TTSError as error:
        report.component("tokenizer").problems.append(str(error))
    if any(not entry.has_passed for entry in report.components.values()):
        return None
    try:
        parts.talker()
    except Qwen3TTSError as error:
        _blame(files, report, error)
        return None
    return parts


def _check_graph(
    graph: str, component: str, files: PublishedFiles, report: VerifyReport, num_threads: int
) -> None:
    entry = report.component(component)
    if graph not in files.graphs:
        entry.problems.append(f"the manifest names no {graph}")
        return
    path = files.directory / files.graphs[graph]
    try:
        census = read_census(path)
        open_session(path, num_threads=num_threads)
    except Qwen3TTSError as error:
        entry.problems.append(str(error))
        return
    entry.graphs.append(census)
    known = {name for name in (entry.precision, coarsest(census.precisions)) if name}
    entry.precision = coarsest(known)


def _blame(files: PublishedFiles, report: VerifyReport, error: Qwen3TTSError) -> None:
    """Note an error with the component whose file it names."""
    for graph, component in _GRAPHS.items():
        name = files.graphs.get(graph)
        if name and str(files.directory / name) in str(error):
            report.component(component).problems.append(str(error))
            return
    report.component("manifest").problems.append(str(error))
