"""Remembers how fast each bundle spoke on this machine, and chooses a precision by that.

``speed.json`` in the first data directory. It is only advice: a damaged or missing file means that
nothing was measured yet.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from wyoming_qwen3tts.models.bundles import InstalledBundle

_LOGGER = logging.getLogger(__name__)

RECORD_NAME: Final = "speed.json"
# With less room than this, anything else that the machine does makes playback stutter.
_COMFORTABLE_RTF: Final = 0.95


class SpeedRecord:
    """Measured real-time factors of bundles."""

    def __init__(self, data_dir: Path) -> None:
        """Keep the record in a data directory."""
        self._path = data_dir / RECORD_NAME

    def rtf(self, bundle: InstalledBundle) -> float | None:
        """Return what was measured; None for a bundle that was not, or was built anew since."""
        entry = self._read().get(bundle.reference)
        if not isinstance(entry, dict) or entry.get("build") != _build_id(bundle):
            return None
        rtf = entry.get("rtf")
        return float(rtf) if isinstance(rtf, int | float) and rtf > 0 else None

    def note(self, bundle: InstalledBundle, rtf: float) -> None:
        """Remember a measurement; a directory that cannot be written only costs the memory."""
        entries = self._read()
        entries[bundle.reference] = {"build": _build_id(bundle), "rtf": round(rtf, 3)}
        beside = self._path.with_suffix(".part")
        try:
            beside.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
            beside.replace(self._path)
        except OSError as error:
            _LOGGER.warning("%s cannot be written: %s", self._path, error)

    def _read(self) -> dict[str, object]:
        try:
            entries = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}


def choose(bundles: Sequence[InstalledBundle], record: SpeedRecord) -> InstalledBundle:
    """Return the bundle of one model to serve where the precision is left open.

    int8 is served until it was measured to be slower than is comfortable; then int4, unless that
    was measured to be slower still.
    """
    ranked = sorted(bundles, key=lambda bundle: bundle.rank)
    best = ranked[0]
    best_rtf = record.rtf(best)
    if best_rtf is None or best_rtf <= _COMFORTABLE_RTF or len(ranked) == 1:
        return best
    other = ranked[1]
    other_rtf = record.rtf(other)
    if other.rank > 1 or (other_rtf or 0.0) >= best_rtf:
        return best
    _LOGGER.info(
        "%s took %.2f s for a second of speech, so %s is served; name one with --precision "
        "to decide yourself",
        best.reference,
        best_rtf,
        other.reference,
    )
    return other


def _build_id(bundle: InstalledBundle) -> str:
    return next(
        (file.sha256 for file in bundle.manifest.files if file.path.startswith("talker")), ""
    )
