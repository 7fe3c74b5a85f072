"""``voice``: add, list, check, remove and design voices."""

import argparse
import json
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from wyoming_qwen3tts.commands.table import print_table
from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.errors import ConfigError, RequestError, VoiceError
from wyoming_qwen3tts.models.bundles import InstalledBundle
from wyoming_qwen3tts.models.references import find_bundle, installed_models
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.text.language import known_language
from wyoming_qwen3tts.voices.catalog import Catalog
from wyoming_qwen3tts.voices.editing import (
    DesignBrief,
    Designer,
    add_voice,
    design_texts,
    design_voice,
    keep_candidate,
    remove_voice,
    speak_brief,
)
from wyoming_qwen3tts.voices.library import LIBRARY_NAME, VoiceLibrary
from wyoming_qwen3tts.voices.voice_folder import (
    LibraryVoice,
    check_voice_name,
    read_text,
    voice_key,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``voice`` and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="clone a voice from a recording")
    add.add_argument("name", metavar="NAME", help="what clients call the voice")
    add.add_argument("--audio", type=Path, required=True, metavar="F", help="1 to 30 s of speech")
    text = add.add_mutually_exclusive_group()
    text.add_argument("--text", metavar="T", help="what the recording says; improves the copy")
    text.add_argument("--text-file", type=Path, metavar="F", help="a file with that text")
    add.add_argument("--description", metavar="D", help="text in lists of voices")
    listing = actions.add_parser("list", help="list the voices of models and library")
    listing.add_argument("--json", action="store_true", help="print JSON")
    check = actions.add_parser("check", help="check the voices of the library")
    check.add_argument("name", nargs="?", metavar="NAME", help="one voice; default: all")
    remove = actions.add_parser("remove", help="remove a voice")
    remove.add_argument("name", metavar="NAME")
    design = actions.add_parser("design", help="make candidates for a voice from a description")
    design.add_argument("description", metavar="DESCRIPTION", help='"warm low male voice"')
    design.add_argument("--name", required=True, metavar="N", help="what clients call the voice")
    design.add_argument("--candidates", type=int, choices=range(1, 21), default=3, metavar="N")
    design.add_argument("--text", metavar="T", help="what candidates say (default: two sentences)")
    design.add_argument("--seed", type=int, metavar="N", help="seed of the first candidate")
    keep = actions.add_parser("keep", help="make a voice of a designed candidate")
    keep.add_argument("name", metavar="NAME", help="the name it was designed under")
    keep.add_argument("candidate", type=int, metavar="CANDIDATE", help="its number")
    for action in (add, design):
        help_line = "de, de-DE, German ... (default: en)"
        action.add_argument("--language", default="en", metavar="L", help=help_line)
    for name, action in actions.choices.items():
        more = {"design": ["models", "threads"], "list": ["models"]}.get(name, [])
        add_flags(action, "data_dirs", *more)


def run(args: argparse.Namespace, config: Config) -> int:
    """Run an action; return 1 when something is wrong with a voice."""
    library = VoiceLibrary(config.data_paths)
    root = config.data_paths[0] / LIBRARY_NAME
    if args.action in ("list", "check"):
        config.check_data_dirs()
    if args.action in ("add", "design", "keep"):
        check_voice_name(args.name)
        for voice in library.scan():
            if voice_key(voice.name) == voice_key(args.name):
                raise VoiceError(
                    f"The name {args.name} is that of {voice.directory}; remove that voice first, "
                    "or choose another name."
                )
    match args.action:
        case "list":
            return _list(args, config, library)
        case "check":
            return _check(library.named(args.name) if args.name else library.scan())
        case "design":
            return _design(args, config, root)
        case "remove":
            _remove(args.name, library)
        case "add":
            _add(args, root)
        case _:
            directory = keep_candidate(root, args.name, args.candidate)
            print(f"Added the voice {args.name} in {directory}; any Base model clones it.")
    return 0


def _add(args: argparse.Namespace, root: Path) -> None:
    transcript = args.text if args.text_file is None else read_text(args.text_file)
    directory = add_voice(root, args.name, args.language, args.audio, transcript, args.description)
    print(f"Added the voice {args.name} in {directory}")
    if transcript is None:
        print("Only the timbre is cloned; with --text the copy is closer.")


def _list(args: argparse.Namespace, config: Config, library: VoiceLibrary) -> int:
    entries = library.scan()
    voices = Catalog(_bundles(config), library, {}).combine(entries)
    rows = [
        (v.info.name, " ".join(v.info.languages), v.bundle.reference, v.info.description)
        for v in voices
    ]
    speaking = [voice.source for voice in voices]
    for entry in entries:
        if entry not in speaking:
            words = f"needs a model of the type {entry.model_type}"
            words = f"UNUSABLE: {entry.problem}" if entry.problem else words
            rows.append((entry.name, entry.language, "-", words))
    columns = ("voice", "languages", "model", "description")
    if args.json:
        table = [dict(zip(columns, row, strict=True)) for row in rows]
        print(json.dumps(table, indent=2, ensure_ascii=False))
        return 0
    print_table([[column.upper() for column in columns], *rows])
    if not entries:
        print("Add your own with: wyoming-qwen3tts voice add NAME --audio FILE --text TEXT")
    return 0


def _check(voices: Sequence[LibraryVoice]) -> int:
    for voice in voices:
        words = voice.problem or "designed from a description"
        if voice.problem is None and voice.clip is not None:
            kind = "clip, timbre alone" if voice.text is None else "clip and transcript"
            words = f"{kind}, {voice.speech_s:.1f} s of speech"
        elif voice.problem is None and voice.settings.preset is not None:
            words = f"the preset {voice.settings.preset} with settings of its own"
        print(f"{'PROBLEM' if voice.problem else 'ok':7}  {voice.name} ({voice.language}): {words}")
    num_problems = sum(voice.problem is not None for voice in voices)
    print(f"voices checked: {len(voices)}, cannot be used: {num_problems}")
    return 1 if num_problems else 0


def _remove(name: str, library: VoiceLibrary) -> None:
    voices = library.named(name)
    if len(voices) > 1:
        folders = ", ".join(str(voice.directory) for voice in voices)
        raise VoiceError(f"Several folders have the name {name}: {folders}. Remove one by hand.")
    remove_voice(voices[0])
    print(f"Removed {voices[0].directory}")


def _design(args: argparse.Namespace, config: Config, root: Path) -> int:
    if not args.description.strip():
        raise RequestError("The description is empty; say what the voice is like.")
    language = known_language(args.language)
    brief = DesignBrief(args.description.strip(), language, args.text or design_texts()[language])
    speak = _open_designer(config)
    first_seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    seeds = range(first_seed, first_seed + args.candidates)
    progress = tqdm(seeds, unit="voice", disable=None, leave=False)
    candidates = design_voice(root, args.name, brief, speak, progress)
    for number, (path, problem) in enumerate(candidates.items(), 1):
        words = f"UNUSABLE: {problem}" if problem else path
        print(f"{number}  {words}  (seed {seeds[number - 1]})")
    if all(candidates.values()):
        print("None of them can be kept; design again, with another seed or description.")
        return 1
    print(f"Listen to them, then keep one: voice keep {args.name} NUMBER")
    return 0


def _open_designer(config: Config) -> Designer:
    for bundle in _bundles(config):
        if bundle.manifest.facts.model_type == "voice_design":
            return partial(speak_brief, open_bundle(bundle.directory, config.num_threads))
    raise ConfigError("No VoiceDesign model is installed; name one with --model, or build one.")


def _bundles(config: Config) -> list[InstalledBundle]:
    named = [find_bundle(model, config.data_paths) for model in config.models]
    return named or installed_models(config.data_paths)
