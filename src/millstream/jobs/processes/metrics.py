"""Metrics of a worker: the counters of each task, for Prometheus, on a port of the worker.

The text format is simple, and the library for it is an extra that workers do not need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from millstream.jobs.processes.reports import TaskFigures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAMILIES = (
    ("started", "millstream_job_started_total", "counter", "Attempts that began."),
    ("done", "millstream_job_done_total", "counter", "Jobs that were done."),
    ("failed", "millstream_job_failed_total", "counter", "Jobs that failed for good."),
    ("retried", "millstream_job_retried_total", "counter", "Attempts that will be repeated."),
    ("cancelled", "millstream_job_cancelled_total", "counter", "Jobs that ended after a cancel."),
    ("run_s", "millstream_job_run_seconds_total", "counter", "The run time of all attempts."),
    (
        "wait_s",
        "millstream_job_wait_seconds_total",
        "counter",
        "The wait time before all attempts.",
    ),
)


def metrics_text(figures: Mapping[str, TaskFigures], processes: int) -> str:
    """Return the counters in the text format of Prometheus."""
    lines = [
        "# HELP millstream_worker_processes Child processes of this worker.",
        "# TYPE millstream_worker_processes gauge",
        f"millstream_worker_processes {processes}",
    ]
    for field, name, kind, text in _FAMILIES:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{task="{_escaped(task)}"}} {getattr(counters, field)}'
            for task, counters in sorted(figures.items())
        ]
    return "\n".join(lines) + "\n"


def _escaped(task: str) -> str:
    return task.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """Serves `/metrics` from a thread of its own."""

    def __init__(self, text: Callable[[], str], *, host: str, port: int) -> None:
        class Answer(BaseHTTPRequestHandler):
            """Answers a request."""

            def do_GET(self) -> None:
                """Answer with the metrics, or with 404."""
                is_known = self.path.partition("?")[0] == "/metrics"
                body = text().encode() if is_known else b"the metrics are at /metrics\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Log no requests."""

        self._server = ThreadingHTTPServer((host, port), Answer)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        thread = threading.Thread(target=self._server.serve_forever, name="millstream-metrics")
        thread.daemon = True
        thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
