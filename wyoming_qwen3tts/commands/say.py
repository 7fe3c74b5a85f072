"""``say``: speak a text into a file or a pipe."""

import argparse
import json
import sys
import time
import wave
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from wyoming_qwen3tts.audio import NUM_CHANNELS, SAMPLE_WIDTH_BYTES, AudioChunk
from wyoming_qwen3tts.config import Config, add_flags
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.files import atomic_file
from wyoming_qwen3tts.text.language import language_code
from wyoming_qwen3tts.tts import TTS
from wyoming_qwen3tts.voices.editing import add_voice
from wyoming_qwen3tts.voices.library import LIBRARY_NAME

_REFERENCE_NAME = "reference"
_SETTINGS = (
    *("models", "data_dirs", "voice", "precision", "threads", "styles", "disabled_text_rules"),
    *("seed", "temperature", "top_k", "top_p", "local_files_only"),
    *("sentence_silence", "leading_silence", "trailing_silence"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``say``."""
    parser.add_argument("text", metavar="TEXT", help="what to say; - reads standard input")
    add_flags(parser, *_SETTINGS)
    parser.add_argument("--language", metavar="L", help="de, de-DE, German ...; default: auto")
    help_line = "a style, or how to speak; for VoiceDesign models: what the voice is like"
    parser.add_argument("--instruct", metavar="TEXT", help=help_line)
    help_line = "clip of a voice to clone (Base models)"
    parser.add_argument("--reference", type=Path, metavar="F", help=help_line)
    help_line = "what the clip says; without it only the timbre is cloned"
    parser.add_argument("--reference-text", metavar="TEXT", help=help_line)
    help_line = "always take the likeliest code (temperature 0)"
    parser.add_argument("--greedy", action="store_true", help=help_line)
    help_line = "WAV file, or - for raw 16-bit PCM on standard output (default: %(default)s)"
    parser.add_argument("--output", default="speech.wav", metavar="F.wav|-", help=help_line)
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")


def run(args: argparse.Namespace, config: Config) -> int:
    """Speak the text."""
    text = sys.stdin.read() if args.text == "-" else args.text
    if args.language is not None and args.language.lower() == "auto":
        args.language = None
    if args.language is not None and language_code(args.language) is None:
        raise RequestError(f"Unknown language {args.language!r}; use a code such as de, or auto.")
    if args.greedy:
        config = replace(config, temperature=0.0)
    with ExitStack() as stack:
        if args.reference is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            config = _with_reference(config, folder, args)
        elif args.reference_text is not None:
            raise RequestError("--reference-text needs --reference, the clip that says it.")
        tts = stack.enter_context(TTS(config=config))
        measured: dict[str, Any] = {
            "voice": config.voice,
            "language": args.language,
            "style": args.instruct,
            "seed": config.seed,
            "output": args.output,
            **dict.fromkeys(("sample_rate_hz", "first_audio_s", "rtf")),
            **dict.fromkeys(("audio_s", "synthesis_s"), 0.0),
        }
        stream = tts.stream(text, language=args.language, style=args.instruct)
        chunks = stack.enter_context(closing(stream))
        bar = tqdm(unit="s", unit_scale=True, desc="audio", disable=None, leave=False)
        stack.enter_context(bar)
        _write(_measured(chunks, measured, bar), args.output)
    # Measurements must not end up inside raw audio.
    out = sys.stderr if args.output == "-" else sys.stdout
    print(json.dumps(measured) if args.json else _summary(measured), file=out)
    return 0


def _with_reference(config: Config, folder: Path, args: argparse.Namespace) -> Config:
    """Return a config with the reference clip as a voice of a temporary library."""
    language = language_code(args.language) or "en"
    library = folder / LIBRARY_NAME
    add_voice(library, _REFERENCE_NAME, language, args.reference, args.reference_text)
    data_dirs = (*map(str, config.data_paths), str(folder))
    return replace(config, data_dirs=data_dirs, voice=_REFERENCE_NAME)


def _measured(
    chunks: Iterable[AudioChunk], measured: dict[str, Any], bar: "tqdm[Any]"
) -> Iterator[AudioChunk]:
    started_s = time.perf_counter()
    for chunk in chunks:
        seconds = measured["synthesis_s"] = time.perf_counter() - started_s
        if measured["first_audio_s"] is None:
            measured["first_audio_s"] = seconds
        measured["sample_rate_hz"] = chunk.sample_rate_hz
        measured["audio_s"] += chunk.duration_s
        measured["rtf"] = seconds / measured["audio_s"]
        bar.update(chunk.duration_s)
        yield chunk


def _summary(measured: dict[str, Any]) -> str:
    if measured["rtf"] is None:
        return f"{measured['output']}: no audio"
    return (
        "{output}: {audio_s:.2f} s of audio, first audio after {first_audio_s:.3f} s, "
        "real-time factor {rtf:.3f}"
    ).format_map(measured)


def _write(chunks: Iterator[AudioChunk], output: str) -> None:
    if output == "-":
        for chunk in chunks:
            sys.stdout.buffer.write(chunk.pcm16())
            sys.stdout.buffer.flush()
        return
    # An error before the first chunk must not create a file.
    first = next(chunks)
    with atomic_file(Path(output)) as file, wave.open(file, "wb") as wav:
        wav.setnchannels(NUM_CHANNELS)
        wav.setsampwidth(SAMPLE_WIDTH_BYTES)
        wav.setframerate(first.sample_rate_hz)
        wav.writeframes(first.pcm16())
        for chunk in chunks:
            wav.writeframes(chunk.pcm16())
