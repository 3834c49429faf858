# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command line of `vllm serve` as far as our roles use it; a flag vLLM does not have is refused by argparse."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.hardware import DESCRIPTION, Hardware, _scalar
from engine.metrics import Metrics
from engine.model import ModelError, load
from engine.scheduler import Scheduler
from engine.server import VERSION, Api, Settings, serve

_BOOL = argparse.BooleanOptionalAction
# Flags of vLLM that this engine accepts and has no use for: name -> type, or None for an on/off flag with a --no- form.
_IGNORED: dict[str, Any] = {
    "allowed-origins": str,
    "aggregate-engine-logging": None,
    "api-server-count": int,
    "async-scheduling": None,
    "attention-backend": str,
    "chat-template": str,
    "cpu-offload-gb": float,
    "data-parallel-size": int,
    "disable-custom-all-reduce": None,
    "disable-log-stats": None,
    "disable-uvicorn-access-log": None,
    "distributed-executor-backend": str,
    "download-dir": str,
    "dtype": str,
    "enable-auto-tool-choice": None,
    "enable-chunked-prefill": None,
    "enable-expert-parallel": None,
    "enable-log-requests": None,
    "enable-prefix-caching": None,
    "enable-sleep-mode": None,
    "enforce-eager": None,
    "generation-config": str,
    "gpu-memory-utilization": float,
    "hf-overrides": str,
    "kv-cache-dtype": str,
    "kv-cache-memory-bytes": str,
    "kv-events-config": str,
    "kv-transfer-config": str,
    "load-format": str,
    "max-log-len": int,
    "numa-bind": None,
    "numa-bind-cpus": str,
    "numa-bind-nodes": str,
    "otlp-traces-endpoint": str,
    "override-generation-config": str,
    "performance-mode": str,
    "pipeline-parallel-size": int,
    "quantization": str,
    "reasoning-parser": str,
    "response-role": str,
    "revision": str,
    "root-path": str,
    "safetensors-load-strategy": str,
    "scheduling-policy": str,
    "seed": int,
    "skip-tokenizer-init": None,
    "speculative-config": str,
    "ssl-certfile": str,
    "ssl-keyfile": str,
    "tensor-parallel-size": int,
    "tokenizer": str,
    "tokenizer-mode": str,
    "tool-call-parser": str,
    "trust-remote-code": None,
    "uvicorn-log-level": str,
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of `vllm serve`."""
    result = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    result.add_argument("model_tag", nargs="?")
    result.add_argument("--config", type=Path)
    result.add_argument("--model")
    result.add_argument("--host", default="0.0.0.0")
    result.add_argument("--port", type=int, default=8000)
    result.add_argument("--api-key", nargs="+", default=[])
    result.add_argument("--served-model-name", nargs="+")
    result.add_argument("--max-model-len", type=int)
    result.add_argument("--max-num-seqs", type=int, default=256)
    result.add_argument("--max-num-batched-tokens", type=int, default=8192)
    result.add_argument("--block-size", type=int, default=16, choices=(1, 8, 16, 32, 64, 128, 256))
    result.add_argument("--num-gpu-blocks-override", type=int)
    result.add_argument("--shutdown-timeout", type=int, default=0)
    for name, kind in _IGNORED.items():
        if kind is None:
            result.add_argument(f"--{name}", action=_BOOL)
        else:
            result.add_argument(f"--{name}", type=kind, nargs="+" if name.startswith("numa-bind-") else None)
    return result


def config_arguments(text: str) -> list[str]:
    """Return the command-line form of a `--config` file: true becomes a bare flag, false its --no- form, a list words.

    Only the flat YAML that such a file has, with JSON values: anything else raises ValueError with the line.
    """
    result: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        key, colon, rest = line.partition(":")
        if not colon or line[:1] in (" ", "-"):
            raise ValueError(f"line {number}: {line!r} is not `key: value`")
        value = json.loads(rest) if rest.strip()[:1] in ("[", "{") else _scalar(rest)
        flag = "--" + key.strip().replace("_", "-")
        if isinstance(value, bool):
            on_off = value or flag.removeprefix("--") in _IGNORED
            result += [flag if value else f"--no-{flag[2:]}"] if on_off else []
        elif isinstance(value, list):
            result += [flag, *map(str, value)]
        else:
            result += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return result


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of `vllm serve`; the command line wins over the file, as in vLLM."""
    words = [
        "--" + w[2:].partition("=")[0].replace("_", "-") + w[2 + len(w[2:].partition("=")[0]) :]
        if w.startswith("--")
        else w
        for w in argv
    ]
    cli = parser()
    known, _unused = cli.parse_known_args(words)
    if known.config:
        try:
            words = config_arguments(known.config.read_text()) + words
        except OSError as exc:
            cli.error(f"argument --config: {known.config}: {exc.strerror}")
        except ValueError as exc:
            cli.error(f"argument --config: {known.config}: {exc}")
    args = cli.parse_args(words)
    args.model = args.model_tag or args.model
    if not args.model:
        cli.error("the following arguments are required: model_tag or --model")
    if args.max_num_seqs < 1:
        cli.error(f"argument --max-num-seqs: {args.max_num_seqs} is not positive")
    return args


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _run(args: argparse.Namespace, hardware: Hardware) -> None:
    speed = hardware.speed()
    model = load(args.model)
    context = args.max_model_len or model.max_model_len
    blocks = args.num_gpu_blocks_override or speed.kv_blocks
    if blocks * args.block_size < context:
        raise ModelError(
            f"max_model_len {context} is larger than the KV cache of {blocks} blocks of {args.block_size} tokens"
        )
    await asyncio.sleep(speed.load_s)
    if hardware.fault() == "crashes":
        raise ModelError("CUDA error: an illegal memory access was encountered")
    while hardware.fault() == "not ready":
        await asyncio.sleep(1)
    names = tuple(args.served_model_name or [args.model])
    metrics = Metrics(names[0])
    scheduler = Scheduler(
        max_num_seqs=args.max_num_seqs,
        max_batched_tokens=args.max_num_batched_tokens,
        block_size=args.block_size,
        kv_blocks=blocks,
        metrics=metrics,
        speed=hardware.speed,
    )
    # The key comes from the environment when it is not given: that is how our unit passes it.
    key = args.api_key[0] if args.api_key else os.environ.get("VLLM_API_KEY", "")
    api = Api(Settings(model, names, context, key, float(args.shutdown_timeout)), scheduler, metrics, hardware)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(
        api, args.host, args.port, stop, lambda: _log(f"Application startup complete on http://{args.host}:{args.port}")
    )
    _log("Finished server process")


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit status."""
    if list(argv) in (["--version"], ["-v"]):
        print(VERSION)
        return 0
    if not argv or argv[0] != "serve":
        print("usage: vllm [-h] [-v] {serve} ...", file=sys.stderr)
        return 0 if list(argv) in (["-h"], ["--help"]) else 2
    args = parse(argv[1:])
    hardware = Hardware(Path(os.environ.get("SIMHW_DESCRIPTION", DESCRIPTION)), os.environ.get("GPU_RACK_IU", ""))
    _log(f"vLLM API server version {VERSION}, model {args.model}")
    try:
        asyncio.run(_run(args, hardware))
    except (ModelError, OSError) as exc:
        _log(f"Engine core initialization failed: {exc}")
        return 1
    return 0
