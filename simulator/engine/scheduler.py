# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Continuous batching: waiting requests join the running batch at every step while sequences and KV blocks allow it.

The loop runs only while there is work, so an idle engine uses no CPU.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable

from engine.hardware import Speed
from engine.metrics import Metrics
from engine.model import token


@dataclasses.dataclass(eq=False)
class Request:
    """One sequence. `events` gets (text, None) for a token and ("", reason) at the end."""

    prompt_tokens: int
    max_tokens: int
    seed: int
    stop_at: int
    """Number of tokens after which the model would emit its end-of-sequence token."""
    arrived: float = dataclasses.field(default_factory=time.monotonic)
    generated: int = 0
    blocks: int = 0
    prefilled: bool = False
    last: float = 0.0
    events: asyncio.Queue[tuple[str, str | None]] = dataclasses.field(default_factory=asyncio.Queue)

    @property
    def tokens(self) -> int:
        """Tokens this sequence has in the KV cache."""
        return self.prompt_tokens + self.generated


class Scheduler:
    """The batch of one engine."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_batched_tokens: int,
        block_size: int,
        kv_blocks: int,
        metrics: Metrics,
        speed: Callable[[], Speed],
    ) -> None:
        """Start empty. `speed` is asked at every step, so that a changed description takes effect at once."""
        self.max_num_seqs = max_num_seqs
        self.block_size = block_size
        self.kv_blocks = kv_blocks
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._max_batched_tokens = max_batched_tokens
        self._metrics = metrics
        self._speed = speed
        self._task: asyncio.Task[None] | None = None

    @property
    def usage(self) -> float:
        """Fraction of KV blocks in use, 0 to 1."""
        return sum(r.blocks for r in self.running) / self.kv_blocks

    def add(self, request: Request) -> None:
        """Queue a request and wake the loop."""
        self.waiting.append(request)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._loop())

    def abort(self, request: Request) -> None:
        """Drop a request whose client has gone; its blocks are free at once. No-op when it has finished."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        else:
            return
        self._finish(request, "abort")

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _admit(self) -> int:
        """Move waiting requests into the batch, first come first served; return the prompt tokens to compute."""
        prefill = 0
        free = self.kv_blocks - sum(r.blocks for r in self.running)
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            need = self._blocks_for(request.tokens + 1)
            if need > free or (prefill and prefill + request.tokens > self._max_batched_tokens):
                break
            self.waiting.popleft()
            request.blocks = need
            free -= need
            prefill += request.tokens
            self.running.append(request)
            if not request.prefilled:
                request.prefilled = True
                self._metrics.counters["prompt_tokens_total"] += request.prompt_tokens
                self._metrics.counters["prefix_cache_queries_total"] += request.prompt_tokens
                self._metrics.observe("request_queue_time_seconds", time.monotonic() - request.arrived)
        return prefill

    def _preempt(self) -> None:
        """Send the youngest sequences back to the queue when the cache is too small for the next step."""
        for request in self.running:
            request.blocks = self._blocks_for(request.tokens + 1)
        while len(self.running) > 1 and sum(r.blocks for r in self.running) > self.kv_blocks:
            victim = self.running.pop()
            victim.blocks = 0
            self.waiting.appendleft(victim)
            self._metrics.counters["num_preemptions_total"] += 1

    async def _loop(self) -> None:
        while self.waiting or self.running:
            self._preempt()
            prefill = self._admit()
            speed = self._speed()
            fill = (len(self.running) - 1) / self.max_num_seqs
            await asyncio.sleep(
                prefill / speed.prefill_tokens_per_s + (1 + speed.batch_slowdown * fill) / speed.tokens_per_s
            )
            now = time.monotonic()
            for request in list(self.running):
                self._emit(request, now)

    def _emit(self, request: Request, now: float) -> None:
        """Give a sequence its next token and end it when it is done."""
        text = token(request.seed, request.generated)
        request.generated += 1
        self._metrics.counters["generation_tokens_total"] += 1
        if request.generated == 1:
            self._metrics.observe("time_to_first_token_seconds", now - request.arrived)
        else:
            self._metrics.observe("inter_token_latency_seconds", now - request.last)
        request.last = now
        request.events.put_nowait((text, None))
        if request.generated >= min(request.max_tokens, request.stop_at):
            self.running.remove(request)
            self._finish(request, "length" if request.generated >= request.max_tokens else "stop")

    def _finish(self, request: Request, reason: str) -> None:
        request.blocks = 0
        self._metrics.finished[reason] += 1
        self._metrics.observe("e2e_request_latency_seconds", time.monotonic() - request.arrived)
        request.events.put_nowait(("", reason))
