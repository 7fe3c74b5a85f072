"""The direction of dependencies, read from the imports of every module of the package."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "wyoming_qwen3tts"
ROOT = Path(__file__).parents[1] / PACKAGE

LEAVES = {"errors", "arrays", "audio", "settings", "config", "files", "machine"}
"""Modules that every room may use; among each other only what their own entry says."""

ENGINE_SIDE = {
    "engine",
    "voices",
    "models",
    "monitoring",
    "protocol",
    "synthesis",
    "runtime",
    "text",
}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "arrays": set(),
    "audio": {"arrays", "errors"},
    "settings": {"errors"},
    "config": {"errors", "machine", "settings"},
    "files": set(),
    "machine": set(),
    "text": {"arrays", "errors"},
    "runtime": {"arrays", "errors"},
    "synthesis": {"arrays", "errors", "audio", "runtime"},
    "builder": {
        "arrays",
        "config",
        "errors",
        "files",
        "machine",
        "runtime.embeddings",
        "runtime.manifest",
        "runtime.tokenizer",
    },
    "protocol": LEAVES | {"text", "synthesis.request"},
    "voices": LEAVES | {"text", "synthesis", "runtime", "models", "protocol"},
    "models": LEAVES | {"runtime"},
    "engine": LEAVES | ENGINE_SIDE,
    "monitoring": LEAVES | {"engine", "models", "protocol"},
    "tts": LEAVES | {"engine", "protocol"},
    "commands": LEAVES | ENGINE_SIDE | {"tts"},
    "app": LEAVES | ENGINE_SIDE,
    "cli": LEAVES | {"app", "commands"},
}
"""Top-level module or room -> what it may import besides itself."""

EXCEPTIONS = {
    # The child process that installs a model; the server never imports the builder.
    ("models.install", "builder."),
    # The int8 codec decoder's ranges are measured by running the float32 one.
    ("builder.graphs.convolution", "runtime.graphs"),
    # Verifying runs what was built, as the server would.
    ("builder.verify", "runtime."),
    ("builder.verify", "synthesis."),
    ("builder.verify", "models."),
    ("builder.trial", "runtime."),
    ("builder.trial", "synthesis."),
    ("builder.build", "runtime.bundle"),
    ("__main__", "cli"),
}

THIRD_PARTY_HOMES = {
    "onnx": {"builder"},
    "onnxruntime": {"runtime"},
    "safetensors": {"builder"},
    "wyoming": {"protocol", "commands"},
    "zeroconf": {"monitoring"},
    "argparse": {"cli", "config", "commands", "builder"},
}
"""Package -> the rooms that may import it; everything else goes through them."""

MAY_READ_ENVIRONMENT = {"cli", "config", "runtime", "commands", "models"}
"""Rooms that may read or set environment variables."""

BANNED = {"torch", "transformers", "requests"}

MODULES = sorted(ROOT.rglob("*.py"))

MAX_PACKAGE_LINES = 16_000
MAX_SCRIPT_LINES = 3_700
MAX_FILE_LINES = 450
MAX_FOLDER_FILES = 12
SCRIPTS = sorted(
    path
    for path in (ROOT.parent / "script").rglob("*")
    if path.suffix == ".py" or (path.is_file() and not path.suffix)
)


def num_lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_the_package_and_the_scripts_stay_small():
    assert num_lines(MODULES) <= MAX_PACKAGE_LINES
    assert num_lines(SCRIPTS) <= MAX_SCRIPT_LINES


@pytest.mark.parametrize("path", [*MODULES, *SCRIPTS], ids=str)
def test_no_file_is_long(path):
    assert num_lines([path]) <= MAX_FILE_LINES


def test_no_folder_is_crowded():
    folders = {path.parent for path in [*MODULES, *SCRIPTS]} - {ROOT.parent / "script"}
    crowded = {folder for folder in folders if len(list(folder.glob("*.py"))) > MAX_FOLDER_FILES}
    assert not crowded


def module_name(path: Path) -> str:
    """Return a module's name below the package; the package's own is empty."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of everything that a module imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(name: str) -> str:
    return name.split(".")[0]


def is_allowed(importer: str, imported: str) -> bool:
    allowed = ALLOWED[layer_of(importer)] | {layer_of(importer)}
    return any(imported == home or imported.startswith(f"{home}.") for home in allowed) or any(
        f"{importer}.".startswith(f"{source}.") and imported.startswith(target)
        for source, target in EXCEPTIONS
    )


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_dependencies_point_one_way(path):
    importer = module_name(path)
    for full_name in imports(path):
        if full_name.split(".")[0] != PACKAGE:
            continue
        imported = full_name.removeprefix(PACKAGE).removeprefix(".")
        if imported == "__version__" or layer_of(importer) in {"", "__main__"}:
            continue
        assert is_allowed(importer, imported), f"{importer} must not import {imported}"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_packages_are_imported_where_they_belong(path):
    layer = layer_of(module_name(path))
    for full_name in imports(path):
        package = full_name.split(".")[0]
        assert package not in BANNED, f"{package} has no place in the product"
        if package in THIRD_PARTY_HOMES:
            assert layer in THIRD_PARTY_HOMES[package], f"{package} belongs elsewhere"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_few_rooms_read_the_environment(path):
    name = module_name(path)
    if layer_of(name) in MAY_READ_ENVIRONMENT:
        return
    names = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert not names & {"environ", "getenv"}


def test_every_module_has_a_place():
    known = set(ALLOWED) | {"", "__main__"}
    assert {layer_of(module_name(path)) for path in MODULES} <= known


def test_the_folder_of_bundles_is_no_package():
    """A file onnx/__init__.py would take the place of the real package."""
    assert not list((ROOT.parent / "onnx").rglob("__init__.py"))


HEAVY = ("onnx", "torch", "transformers", "zeroconf", "safetensors")


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a statement loads in a fresh interpreter."""
    code = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT.parent,
    )
    return set(result.stdout.split())


def test_serving_loads_nothing_that_only_building_needs():
    loaded = loaded_by(f"import {PACKAGE}.app, {PACKAGE}.engine.engine")
    assert "onnxruntime" in loaded
    assert not loaded & set(HEAVY)


def test_the_command_line_loads_no_model_runtime():
    loaded = loaded_by(f"import {PACKAGE}.cli")
    assert not loaded & {*HEAVY, "onnxruntime", "soundfile", "tokenizers"}
