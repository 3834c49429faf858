# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Counters, gauges and histograms under vLLM's names in the Prometheus text format."""

from __future__ import annotations

import bisect

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _ITL),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _E2E),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _E2E),
}
COUNTERS: dict[str, str] = {
    "prompt_tokens_total": "Number of prefill tokens processed.",
    "generation_tokens_total": "Number of generation tokens processed.",
    "num_preemptions_total": "Cumulative number of preemption from the engine.",
    "prefix_cache_queries_total": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits_total": "Prefix cache hits, in terms of number of cached tokens.",
}
FINISH_REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """All series of one engine."""

    def __init__(self, model: str) -> None:
        """Start every series at zero, so that a scrape before the first request sees them."""
        self._engine = 'engine="0"'
        self._model = f'model_name="{model}"'
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self._buckets = {name: [0] * (len(edges) + 1) for name, (_unused, edges) in HISTOGRAMS.items()}
        self._sums = dict.fromkeys(HISTOGRAMS, 0.0)

    def observe(self, name: str, value: float) -> None:
        """Put a value into a histogram."""
        self._buckets[name][bisect.bisect_left(HISTOGRAMS[name][1], value)] += 1
        self._sums[name] += value

    def render(self, gauges: dict[str, tuple[str, float]], info: dict[str, str]) -> str:
        """Return the exposition text; `gauges` maps name to help text and value, `info` is cache_config_info."""
        lines: list[str] = []
        for name, (text, value) in gauges.items():
            lines += [*self._head(name, text, "gauge"), self._line(name, value)]
        pairs = ",".join(f'{k}="{v}"' for k, v in info.items())
        lines += self._head("cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
        lines.append(f'vllm:cache_config_info{{{pairs},engine="0"}} 1.0')
        for name, text in COUNTERS.items():
            lines += [*self._head(name, text, "counter"), self._line(name, self.counters[name])]
        lines += self._head("request_success_total", "Count of successfully processed requests.", "counter")
        for reason, count in self.finished.items():
            lines.append(self._line("request_success_total", count, f'finished_reason="{reason}"'))
        for name, (text, edges) in HISTOGRAMS.items():
            lines += self._head(name, text, "histogram")
            total = 0
            for edge, count in zip([*map(str, edges), "+Inf"], self._buckets[name], strict=True):
                total += count
                lines.append(self._line(f"{name}_bucket", total, f'le="{edge}"'))
            lines += [self._line(f"{name}_count", total), self._line(f"{name}_sum", self._sums[name])]
        return "\n".join(lines) + "\n"

    def _line(self, name: str, value: float, label: str = "") -> str:
        labels = ",".join(text for text in (self._engine, label, self._model) if text)
        return f"vllm:{name}{{{labels}}} {float(value)}"

    @staticmethod
    def _head(name: str, text: str, kind: str) -> list[str]:
        return [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]
