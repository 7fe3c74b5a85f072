"""``voice.yaml`` and the other small text files of a voice folder."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import yaml

from wyoming_qwen3tts.errors import ConfigError, VoiceError
from wyoming_qwen3tts.settings import read_mapping, setting
from wyoming_qwen3tts.synthesis.request import SynthesisOptions

SETTINGS_NAME: Final = "voice.yaml"

_MAX_TEXT_BYTES = 16 * 2**10
_OLD_NAMES: Final = {f"sampling.{name}": name for name in ("temperature", "top_k", "top_p")}


@dataclass(frozen=True)
class VoiceSettings:
    """Contents of ``voice.yaml``."""

    description: str | None = setting(None, "What people read in a list of voices.")
    preset: str | None = setting(
        None,
        "A preset speaker that speaks with these settings, in a folder without clip and "
        "description.",
    )
    seed: int | None = setting(
        None, "Number that makes the voice's speech repeatable; null draws one.", minimum=0
    )
    style: str | None = setting(None, "How to speak, for models that follow instructions.")
    model_size: Literal["any", "0.6B", "1.7B"] = setting(
        "any", "Size of model that speaks the voice where there are several."
    )
    check_transcript: bool = setting(
        True, "Refuse a transcript that cannot be all of what the clip says."
    )
    temperature: float | None = setting(
        None, "Higher is livelier; null takes the model's own.", minimum=0.01, maximum=10
    )
    top_k: int | None = setting(
        None, "Number of likeliest codes to sample from, 0 for all.", minimum=0
    )
    top_p: float | None = setting(
        None,
        "Sample from the likeliest codes that reach this probability together.",
        minimum=0.01,
        maximum=1,
    )

    def apply(self, options: SynthesisOptions) -> SynthesisOptions:
        """Return the options with this voice's seed and sampling in place of the general ones."""
        changes = {
            name: value
            for name in ("temperature", "top_k", "top_p")
            if (value := getattr(self, name)) is not None
        }
        return replace(
            options,
            talker=replace(options.talker, **changes),
            predictor=replace(options.predictor, **changes),
            seed=options.seed if self.seed is None else self.seed,
        )


def read_text(path: Path) -> str:
    """Return a text file as it is, without a byte order mark.

    Raises:
        VoiceError: It cannot be read, is too long or no UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TEXT_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise VoiceError(f"{path.name} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise VoiceError(f"{path.name} is no UTF-8 text; save it again as UTF-8.") from error
    if len(content) > _MAX_TEXT_BYTES:
        raise VoiceError(f"{path.name} is longer than {_MAX_TEXT_BYTES // 2**10} KB; shorten it.")
    return text


def read_settings(path: Path) -> VoiceSettings:
    """Read ``voice.yaml``.

    Raises:
        ConfigError: It is no YAML, or holds an unknown key or a wrong value.
        VoiceError: It cannot be read.
    """
    text = read_text(path)
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path.name} is no YAML: {' '.join(str(error).split())}") from error
    return VoiceSettings(**read_mapping(VoiceSettings, values, path.name, _OLD_NAMES))
