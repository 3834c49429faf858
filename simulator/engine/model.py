# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The model directory: checked the way an engine would notice damage, and a tokenizer good enough to count with."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path

_PIECE = re.compile(r"\s?[^\W\d_]{1,6}|\s?\d{1,3}|\s?[^\w\s]|\s+")
_WORDS = """
    the a of to and in rack node link port light heat flow path queue token cache block time step rate wide deep cold
    fast slow first last even odd near far open shut left right up down warm clear steady small large long short new
""".split()  # noqa: SIM905 - a list of a word a line would be a page long


class ModelError(Exception):
    """The model directory cannot be loaded; the text names the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A loaded model."""

    path: str
    max_model_len: int
    weight_bytes: int


def load(path: str) -> Model:
    """Load a model directory. Raises ModelError for what a real loader would refuse too."""
    root = Path(path)
    try:
        config = json.loads((root / "config.json").read_bytes())
    except OSError as exc:
        raise ModelError(f"{root / 'config.json'}: {exc.strerror}") from exc
    except ValueError as exc:
        raise ModelError(f"{root / 'config.json'}: not JSON ({exc})") from exc
    weights = sorted(root.glob("*.safetensors"))
    if not weights:
        raise ModelError(f"{root}: cannot find any *.safetensors model weights")
    total = sum(_check_safetensors(file) for file in weights)
    return Model(path, int(config.get("max_position_embeddings", 2048)), total)


def _check_safetensors(file: Path) -> int:
    """Return the size of a safetensors file whose header describes exactly its bytes."""
    data = file.read_bytes()
    if len(data) < 8:
        raise ModelError(f"{file}: header too small")
    (length,) = struct.unpack_from("<Q", data)
    if length > len(data) - 8:
        raise ModelError(f"{file}: invalid header length")
    try:
        header = json.loads(data[8 : 8 + length])
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(f"{file}: invalid header ({exc})") from exc
    if 8 + length + end != len(data):
        raise ModelError(f"{file}: incomplete metadata, file not fully covered")
    return len(data)


def count_tokens(text: str) -> int:
    """Return how many tokens a text has (at least one: the beginning-of-sequence token)."""
    return 1 + sum(1 for _n in _PIECE.finditer(text))


def token(seed: int, index: int) -> str:
    """Return the index-th generated token of a request; the same seed gives the same text."""
    value = (seed * 6364136223846793005 + (index + 1) * 1442695040888963407) & (2**64 - 1)
    return " " + _WORDS[(value >> 33) % len(_WORDS)]
