"""``voice``: add, list, check, remove and design voices of the library."""

import argparse
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tqdm import tqdm

from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.errors import ConfigError, RequestError, VoiceError
from wyoming_qwen3tts.models.bundles import InstalledBundle, installed_bundles
from wyoming_qwen3tts.models.references import find_bundle
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.voices.editing import (
    DESIGN_TEXTS,
    DESIGNS_NAME,
    Candidate,
    DesignBrief,
    NewVoice,
    VoiceDesigner,
    add_voice,
    candidate_path,
    design_voice,
    keep_candidate,
    remove_voice,
)
from wyoming_qwen3tts.voices.library import LIBRARY_NAME, VoiceLibrary
from wyoming_qwen3tts.voices.voice_folder import (
    LibraryVoice,
    VoiceKind,
    check_clip,
    check_voice_name,
    read_text,
    voice_key,
)

_PROGRAM: Final = "wyoming-qwen3tts voice"
_DEFAULT_LANGUAGE: Final = "en"
_MAX_CANDIDATES: Final = 20
# Seeds of candidates are short enough to be noted down.
_MAX_SEED: Final = 10**6

OpenDesigner = Callable[[Config], VoiceDesigner]
"""Opens a VoiceDesign model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``voice`` and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="clone a voice from a recording")
    add.add_argument("name", metavar="NAME", help="what clients call the voice")
    add.add_argument("--audio", type=Path, required=True, metavar="F", help="1 to 30 s of speech")
    text = add.add_mutually_exclusive_group()
    text.add_argument(
        "--text", metavar="T", help="every word that the recording says; makes the copy better"
    )
    text.add_argument("--text-file", type=Path, metavar="F", help="a file with that text")
    add.add_argument("--description", metavar="D", help="what people read in lists of voices")
    actions.add_parser("list", help="list the voices of the library")
    check = actions.add_parser("check", help="check voices and say what is wrong with them")
    check.add_argument("name", nargs="?", metavar="NAME", help="one voice; default: all")
    remove = actions.add_parser("remove", help="remove a voice")
    remove.add_argument("name", metavar="NAME")
    design = actions.add_parser("design", help="make candidates for a voice from a description")
    _add_design_arguments(design)
    keep = actions.add_parser("keep", help="make a voice of a designed candidate")
    keep.add_argument("name", metavar="NAME", help="the name it was designed under")
    keep.add_argument("candidate", type=int, metavar="CANDIDATE", help="its number")
    for action in (add, design):
        action.add_argument(
            "--language",
            default=_DEFAULT_LANGUAGE,
            metavar="L",
            help="language it speaks: de, de-DE, German ... (default: %(default)s)",
        )
    for action in actions.choices.values():
        names = ("data_dirs", "models", "threads") if action is design else ("data_dirs",)
        add_flags(action, *names)


def _add_design_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("description", metavar="DESCRIPTION", help='"warm low male voice"')
    parser.add_argument("--name", required=True, metavar="N", help="what clients call the voice")
    parser.add_argument("--candidates", type=int, default=3, metavar="N")
    parser.add_argument("--text", metavar="T", help="what candidates say (default: two sentences)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the first candidate")


def run(args: argparse.Namespace, config: Config, open_designer: OpenDesigner | None = None) -> int:
    """Carry out an action; return 1 when something is wrong with a voice.

    Args:
        args: What :func:`add_arguments` declared.
        config: Every setting.
        open_designer: Opens the VoiceDesign model; tests give their own.

    Raises:
        Qwen3TTSError: The action is not possible.
    """
    data_dirs = config.data_paths
    match args.action:
        case "add":
            return _add(args, data_dirs)
        case "list":
            return _list(data_dirs)
        case "check":
            return _check(args.name, data_dirs)
        case "remove":
            return _remove(args.name, data_dirs)
        case "design":
            return _design(args, config, open_designer or _open_designer)
        case _:
            return _keep(args.name, args.candidate, data_dirs)


def _add(args: argparse.Namespace, data_dirs: Sequence[Path]) -> int:
    transcript = args.text
    if args.text_file is not None:
        transcript = read_text(args.text_file)
    _check_free(args.name, data_dirs)
    voice = NewVoice(
        name=args.name,
        language=_language(args.language),
        audio=args.audio,
        transcript=transcript,
        description=args.description,
    )
    directory = add_voice(data_dirs[0] / LIBRARY_NAME, voice)
    print(f"Added the voice {args.name} in {directory}")
    if transcript is None:
        print("Only the timbre is cloned; with --text the copy is closer.")
    return 0


def _list(data_dirs: Sequence[Path]) -> int:
    voices = VoiceLibrary(data_dirs).scan()
    if not voices:
        print(f"No voices yet; add one with: {_PROGRAM} add NAME --audio FILE --text TEXT")
    width = max((len(voice.name) for voice in voices), default=0)
    for voice in voices:
        description = voice.settings.description or voice.text
        words = f"UNUSABLE: {voice.problem}" if voice.problem is not None else description[:80]
        print(f"{voice.name:{width}}  {voice.language:2}  {voice.kind:8}  {words}".rstrip())
    return 0


def _check(name: str | None, data_dirs: Sequence[Path]) -> int:
    library = VoiceLibrary(data_dirs)
    voices = library.named(name) if name is not None else library.scan()
    for voice in voices:
        if voice.problem is None:
            print(f"ok       {voice.name} ({voice.language}): {_facts(voice)}")
        else:
            print(f"PROBLEM  {voice.name} ({voice.language}): {voice.problem}")
    num_problems = sum(voice.problem is not None for voice in voices)
    print(f"voices checked: {len(voices)}, cannot be used: {num_problems}")
    return 1 if num_problems else 0


def _facts(voice: LibraryVoice) -> str:
    if voice.kind is VoiceKind.DESIGNED:
        return "designed from a description"
    duration_s = check_clip(voice)
    kind = "clip and transcript" if voice.kind is VoiceKind.ICL else "clip, timbre alone"
    return f"{kind}, {duration_s:.1f} s of speech"


def _remove(name: str, data_dirs: Sequence[Path]) -> int:
    voices = VoiceLibrary(data_dirs).named(name)
    if len(voices) > 1:
        folders = ", ".join(str(voice.directory) for voice in voices)
        raise VoiceError(f"Several folders have the name {name}: {folders}. Remove one by hand.")
    remove_voice(voices[0])
    print(f"Removed {voices[0].directory}")
    return 0


def _design(args: argparse.Namespace, config: Config, opener: OpenDesigner) -> int:
    data_dirs = config.data_paths
    if not 1 <= args.candidates <= _MAX_CANDIDATES:
        raise RequestError(f"--candidates must be 1 to {_MAX_CANDIDATES}, not {args.candidates}.")
    if not args.description.strip():
        raise RequestError("The description is empty; say what the voice is like.")
    root = data_dirs[0] / LIBRARY_NAME
    language = _language(args.language)
    brief = DesignBrief(args.description.strip(), language, args.text or DESIGN_TEXTS[language])
    check_voice_name(args.name)
    _check_free(args.name, data_dirs)
    designer = opener(config)
    first_seed = secrets.randbelow(_MAX_SEED) if args.seed is None else args.seed
    seeds = tqdm(
        range(first_seed, first_seed + args.candidates), unit="voice", disable=None, leave=False
    )
    candidates = design_voice(root, args.name, brief, designer, seeds)
    return _show_candidates(args.name, root / DESIGNS_NAME / args.name, candidates)


def _show_candidates(name: str, folder: Path, candidates: Sequence[Candidate]) -> int:
    for number, candidate in enumerate(candidates, 1):
        problem = f"  UNUSABLE: {candidate.problem}" if candidate.problem is not None else ""
        path = candidate_path(folder, number)
        print(f"{number}  {path}  {candidate.duration_s:.1f} s, seed {candidate.seed}{problem}")
    if all(candidate.problem is not None for candidate in candidates):
        print("None of them can be kept; design again, with another seed or description.")
        return 1
    print(f"Listen to them, then keep one: {_PROGRAM} keep {name} NUMBER")
    return 0


def _keep(name: str, number: int, data_dirs: Sequence[Path]) -> int:
    _check_free(name, data_dirs)
    root = data_dirs[0] / LIBRARY_NAME
    directory = keep_candidate(root, name, number)
    print(f"Added the voice {name} in {directory}; any Base model clones it.")
    return 0


def _check_free(name: str, data_dirs: Sequence[Path]) -> None:
    for voice in VoiceLibrary(data_dirs).scan():
        if voice_key(voice.name) == voice_key(name):
            raise VoiceError(
                f"The name {name} is that of {voice.directory}; remove that voice first, or choose "
                "another name."
            )


def _language(name: str) -> str:
    code = language_code(name)
    if code is None:
        raise RequestError(f"Unknown language {name!r}; use {', '.join(DESIGN_TEXTS)}.")
    return code


def _open_designer(config: Config) -> VoiceDesigner:
    bundle = _installed_designer(config)
    return VoiceDesigner(open_bundle(bundle.directory, config.num_threads))


def _installed_designer(config: Config) -> InstalledBundle:
    named = [find_bundle(model, config.data_paths) for model in config.models]
    for bundle in named or installed_bundles(config.data_paths):
        if bundle.manifest.facts.model_type == "voice_design":
            return bundle
    raise ConfigError(
        "No VoiceDesign model is installed; name one with --model, or build one with: "
        "wyoming-qwen3tts build CHECKPOINT"
    )
