# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The OpenAI API over HTTP/1.1: completions, chat completions (plain and streamed), models, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from engine.hardware import Hardware
from engine.metrics import Metrics
from engine.model import Model, count_tokens
from engine.scheduler import Request, Scheduler

VERSION = "0.32.0"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Too Large",
    503: "Unavailable",
}
_MAX_BODY = 32 << 20
_MEAN_ANSWER = 96
"""Tokens after which the made-up model ends its answer by itself, on average."""


class ApiError(Exception):
    """A request the API refuses, with the status and the error type vLLM would give it."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        """Describe the refusal."""
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _bad(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, "BadRequestError", message, param)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What the command line decides for the API."""

    model: Model
    served_names: tuple[str, ...]
    max_model_len: int
    api_key: str
    shutdown_timeout: float


def _integer(body: Mapping[str, Any], key: str, default: int | None, low: int) -> int | None:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise _bad(f"{key} must be an integer of at least {low}, got {value!r}.", key)
    return value


def _prompt(body: Mapping[str, Any], chat: bool) -> tuple[int, int]:
    """Return the prompt's token count and a seed made from its content."""
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            raise _bad("messages must be a list of at least one message.", "messages")
        text = "".join(f"<|{m.get('role', 'user')}|>{_content(m.get('content'))}" for m in messages)
        return count_tokens(text), zlib.crc32(text.encode())
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(t, int) for t in prompt):
        return len(prompt), zlib.crc32(json.dumps(prompt).encode())
    if not isinstance(prompt, str) or not prompt:
        raise _bad(
            "Either prompt or prompt_embeds must be provided and non-empty: one text or one list of token ids.",
            "prompt",
        )
    return count_tokens(prompt), zlib.crc32(prompt.encode())


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


class Api:
    """The engine behind the sockets."""

    def __init__(self, settings: Settings, scheduler: Scheduler, metrics: Metrics, hardware: Hardware) -> None:
        """Serve one model."""
        self.settings = settings
        self.scheduler = scheduler
        self.metrics = metrics
        self.hardware = hardware
        self.draining = False
        self.active = 0
        self._hung = 0
        self._created = int(time.time())

    def models(self) -> dict[str, Any]:
        """Return the model list."""
        entry = {
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self.settings.model.path,
            "parent": None,
            "max_model_len": self.settings.max_model_len,
        }
        return {"object": "list", "data": [{"id": name, **entry} for name in self.settings.served_names]}

    def render_metrics(self) -> str:
        """Return the Prometheus text."""
        scheduler = self.scheduler
        gauges = {
            "num_requests_running": (
                "Number of requests in model execution batches.",
                len(scheduler.running) + self._hung,
            ),
            "num_requests_waiting": ("Number of requests waiting to be processed.", len(scheduler.waiting)),
            "kv_cache_usage_perc": ("KV-cache usage. 1 means 100 percent usage.", scheduler.usage),
        }
        info = {"block_size": str(scheduler.block_size), "num_gpu_blocks": str(scheduler.kv_blocks)}
        return self.metrics.render(gauges, info)

    def authorize(self, path: str, headers: Mapping[str, str]) -> None:
        """Refuse a /v1 call without the key when one is set."""
        if (
            self.settings.api_key
            and path.startswith("/v1")
            and headers.get("authorization") != f"Bearer {self.settings.api_key}"
        ):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    def admit(self, body: Mapping[str, Any], chat: bool) -> Request:
        """Check a generation request and return the sequence for it."""
        name = body.get("model")
        if name is not None and name not in self.settings.served_names:
            raise ApiError(404, "NotFoundError", f"The model `{name}` does not exist.", "model")
        if body.get("n", 1) != 1:
            raise _bad("This engine makes one choice a request: n must be 1.", "n")
        tokens, seed = _prompt(body, chat)
        room = self.settings.max_model_len - tokens
        if room < 1:
            context = self.settings.max_model_len
            raise _bad(f"This model's maximum context length is {context} tokens, the prompt has {tokens}.", "prompt")
        wanted = _integer(body, "max_completion_tokens", None, 1) or _integer(
            body, "max_tokens", room if chat else 16, 1
        )
        if wanted is None or wanted > room:
            raise _bad(
                f"max_tokens is {wanted}: with {tokens} prompt tokens the model's context leaves {room}.", "max_tokens"
            )
        seed ^= int(_integer(body, "seed", 0, 0) or 0)
        natural = max(1, int(_MEAN_ANSWER * (0.25 + (seed % 1000) / 666)))
        stop_at = wanted if body.get("ignore_eos") else max(natural, _integer(body, "min_tokens", 0, 0) or 0)
        return Request(prompt_tokens=tokens, max_tokens=wanted, seed=seed, stop_at=stop_at)

    async def hang(self) -> None:
        """Never answer, as an engine does whose GPU is wedged: only the client's leaving ends it."""
        self._hung += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._hung -= 1


class Connection(asyncio.Protocol):
    """One client connection. Its loss cancels the request in work, which is how a client aborts."""

    def __init__(self, api: Api, connections: set[Connection]) -> None:
        """Belong to an engine."""
        self._api = api
        self._all = connections
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        self._keep_alive = True
        self._chunked = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Abort the request in work."""
        self._all.discard(self)
        if self.task:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """Collect a request and answer it when it is whole."""
        self._buffer += data
        self._next()

    def _next(self) -> None:
        if self.task or not self._transport or self._transport.is_closing():
            return
        try:
            request = _parse(self._buffer)
        except ApiError as exc:
            self._keep_alive = False
            self._json(exc.status, exc.body)
            self._transport.close()
            return
        if request:
            self.task = asyncio.get_running_loop().create_task(self._serve(*request))
            self.task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self.task = None
        if not task.cancelled() and (error := task.exception()):
            raise error
        if self._transport and not self._transport.is_closing():
            if self._keep_alive and not self._api.draining:
                self._next()
            else:
                self._transport.close()

    async def _serve(self, method: str, target: str, version: str, headers: dict[str, str], body: bytes) -> None:
        path = target.partition("?")[0]
        wish = headers.get("connection", "").lower()
        self._chunked = version == "HTTP/1.1"
        self._keep_alive = wish != "close" and (self._chunked or wish == "keep-alive")
        try:
            self._api.authorize(path, headers)
            await self._route(method, path, body)
        except ApiError as exc:
            self._json(exc.status, exc.body)

    async def _route(self, method: str, path: str, body: bytes) -> None:
        get: dict[str, Callable[[], Any]] = {
            "/health": lambda: None,
            "/ping": lambda: None,
            "/version": lambda: {"version": VERSION},
            "/v1/models": self._api.models,
            "/metrics": self._api.render_metrics,
        }
        if path in ("/v1/completions", "/v1/chat/completions"):
            if method != "POST":
                raise ApiError(405, "Method Not Allowed", "Method Not Allowed")
            await self._generate(body, chat="chat" in path)
        elif path in get:
            if method not in ("GET", "HEAD", "POST" if path == "/ping" else "GET"):
                raise ApiError(405, "Method Not Allowed", "Method Not Allowed")
            answer = get[path]()
            if answer is None:
                self._send(200, b"", "text/plain")
            elif isinstance(answer, str):
                self._send(200, answer.encode(), "text/plain; version=1.0.0; charset=utf-8")
            else:
                self._json(200, answer)
        else:
            raise ApiError(404, "Not Found", "Not Found")

    async def _generate(self, raw: bytes, chat: bool) -> None:
        api = self._api
        if api.draining:
            raise ApiError(503, "ServiceUnavailableError", "The engine is shutting down.")
        try:
            body = json.loads(raw)
        except ValueError as exc:
            raise _bad(f"The body is not JSON: {exc}") from exc
        if not isinstance(body, dict):
            raise _bad("The body must be a JSON object.")
        request = api.admit(body, chat)
        fault = api.hardware.fault()
        api.active += 1
        try:
            if fault == "never answers":
                await api.hang()
            if fault == "no token":
                request.events.put_nowait(("", "stop"))
            else:
                api.scheduler.add(request)
            answer = Answer(request, chat, str(body.get("model") or api.settings.served_names[0]))
            if body.get("stream"):
                await self._stream(answer, body.get("stream_options") or {})
            else:
                parts = []
                while True:
                    text, reason = await request.events.get()
                    if reason:
                        break
                    parts.append(text)
                self._json(200, answer.whole("".join(parts), reason))
        finally:
            api.active -= 1
            api.scheduler.abort(request)

    async def _stream(self, answer: Answer, options: Mapping[str, Any]) -> None:
        usage = bool(options.get("include_usage"))
        running = usage and bool(options.get("continuous_usage_stats"))
        self._head(200, "text/event-stream; charset=utf-8", None)
        if answer.chat:
            self._event(answer.chunk(None, None, running, role=True))
        while True:
            text, reason = await answer.request.events.get()
            self._event(answer.chunk(text, reason, running))
            if reason:
                break
        if usage:
            self._event(answer.last_usage())
        self._chunk(b"data: [DONE]\n\n")
        if self._chunked:
            self._write(b"0\r\n\r\n")
        else:
            self._keep_alive = False

    def _event(self, data: Mapping[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _json(self, status: int, data: Mapping[str, Any]) -> None:
        self._send(status, json.dumps(data, separators=(",", ":")).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self._head(status, kind, len(body))
        self._write(body)

    def _head(self, status: int, kind: str, length: int | None) -> None:
        framing = (
            f"content-length: {length}"
            if length is not None
            else "transfer-encoding: chunked"
            if self._chunked
            else "connection: close"
        )
        close = "" if self._keep_alive or length is None else "connection: close\r\n"
        start = f"HTTP/1.1 {status} {_REASONS[status]}\r\nserver: uvicorn\r\ncontent-type: {kind}"
        self._write(f"{start}\r\n{framing}\r\n{close}\r\n".encode())

    def _write(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def close_idle(self) -> None:
        """Close the connection unless it has a request in work."""
        if self._transport and not self.task:
            self._transport.close()


@dataclasses.dataclass(eq=False)
class Answer:
    """Builds the response objects of one request."""

    request: Request
    chat: bool
    model: str
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def usage(self) -> dict[str, int]:
        """Return the token counts so far."""
        prompt, done = self.request.prompt_tokens, self.request.generated
        return {"prompt_tokens": prompt, "total_tokens": prompt + done, "completion_tokens": done}

    def _base(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def whole(self, text: str, reason: str) -> dict[str, Any]:
        """Return the answer of a request that did not stream."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {
            **self._base("chat.completion" if self.chat else "text_completion"),
            "choices": [choice],
            "usage": self.usage(),
        }

    def _kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def chunk(self, text: str | None, reason: str | None, usage: bool, role: bool = False) -> dict[str, Any]:
        """Return one event of a stream."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": ""} if role else {"content": text} if text else {}
        else:
            choice["text"] = text or ""
        return {**self._base(self._kind()), "choices": [choice], **({"usage": self.usage()} if usage else {})}

    def last_usage(self) -> dict[str, Any]:
        """Return the event with the usage and no choice."""
        return {**self._base(self._kind()), "choices": [], "usage": self.usage()}


def _parse(buffer: bytearray) -> tuple[str, str, str, dict[str, str], bytes] | None:
    """Take one whole request from the buffer; None when more bytes are needed."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > 65536:
            raise ApiError(413, "Too Large", "Request header too large")
        return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3:
        raise _bad("Invalid HTTP request line.")
    headers = {k.strip().lower(): v.strip() for k, _sep, v in (line.partition(":") for line in lines[1:])}
    start = end + 4
    if headers.get("transfer-encoding", "").lower() == "chunked":
        taken = _dechunk(buffer, start)
        if taken is None:
            return None
        body, after = taken
    else:
        text = headers.get("content-length", "0")
        if not text.isdigit() or int(text) > _MAX_BODY:
            raise ApiError(413, "Too Large", "Invalid or too large Content-Length")
        after = start + int(text)
        if len(buffer) < after:
            return None
        body = bytes(buffer[start:after])
    del buffer[:after]
    return parts[0], parts[1], parts[2], headers, body


def _dechunk(buffer: bytearray, position: int) -> tuple[bytes, int] | None:
    """Return a chunked body and the position behind it; None when it is not whole yet."""
    body = bytearray()
    while True:
        line = buffer.find(b"\r\n", position)
        if line < 0:
            return None
        try:
            size = int(bytes(buffer[position:line]).partition(b";")[0], 16)
        except ValueError as exc:
            raise _bad("Invalid chunk size.") from exc
        position = line + 2
        if len(body) + size > _MAX_BODY:
            raise ApiError(413, "Too Large", "Request body too large")
        if len(buffer) < position + size + 2:
            return None
        body += buffer[position : position + size]
        position += size + 2
        if size == 0:
            return bytes(body), position


async def serve(api: Api, host: str, port: int, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    """Serve until `stop` is set, then drain: no new request, wait for those in work up to the shutdown time-out."""
    connections: set[Connection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(api, connections), host, port, reuse_address=True
    )
    ready()
    await stop.wait()
    api.draining = True
    server.close()
    for connection in list(connections):
        connection.close_idle()
    deadline = time.monotonic() + api.settings.shutdown_timeout
    while api.active and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    tasks = [c.task for c in connections if c.task]
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
