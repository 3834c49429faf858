# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a tiny model with random weights, and its SHA256SUMS, into a directory: `python3 make_model.py DIR`.

Same bytes on every run, so that nodes of a rack agree. The layout is that of a Llama in Hugging Face's format.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
from pathlib import Path

_VOCAB, _HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _INNER = 512, 64, 2, 2, 1, 128


def _shapes() -> dict[str, tuple[int, ...]]:
    """Return the tensors of the model by name."""
    head = _HIDDEN // _HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (_VOCAB, _HIDDEN),
        "lm_head.weight": (_VOCAB, _HIDDEN),
    }
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (_HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (_HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (_KV_HEADS * head, _HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (_KV_HEADS * head, _HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": (_INNER, _HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (_INNER, _HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (_HIDDEN, _INNER),
        }
    return shapes | {"model.norm.weight": (_HIDDEN,)}


def safetensors(seed: int = 1) -> bytes:
    """Return the weights file: 8-byte header length, JSON header, float32 data."""
    chance = random.Random(seed)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, shape in _shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if len(shape) == 1 else [chance.gauss(0.0, 0.2) for _n in range(count)]
        start = len(data)
        data += struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def _byte_names() -> list[str]:
    """Return the printable stand-ins of the 256 bytes that byte-level BPE tokenizers use (GPT-2's convention)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in plain}
    for extra, byte in enumerate(b for b in range(256) if b not in names):
        names[byte] = chr(256 + extra)
    return [names[b] for b in range(256)]


def tokenizer() -> dict[str, object]:
    """Return tokenizer.json: byte-level, without merges; the vocabulary above the bytes is filled up with names."""
    special = ["<s>", "</s>", "<pad>"]
    words = special + _byte_names()
    words += [f"<w{i}>" for i in range(_VOCAB - len(words))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": w,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, w in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {w: i for i, w in enumerate(words)},
            "merges": [],
        },
    }


def files() -> dict[str, bytes]:
    """Return every file of the model by name."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _VOCAB,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HIDDEN // _HEADS,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "torch_dtype": "float32",
    }
    chat = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 8192,
        "chat_template": chat,
    }
    data = {"config.json": config, "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1}}
    data |= {"tokenizer.json": tokenizer(), "tokenizer_config.json": tokens}
    texts = {name: (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode() for name, value in data.items()}
    return texts | {"model.safetensors": safetensors()}


def write(directory: Path) -> None:
    """Write the model and its manifest."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    sums = []
    for name, content in sorted(files().items()):
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o644)
        sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    (directory / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIR")
    write(Path(sys.argv[1]))
