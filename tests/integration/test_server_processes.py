"""`millstream serve --processes`: one port and one file, and processes that end and are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream.server.auth.tokens import create_token
from tests.integration.programs import program

PROCESSES = 2


def wait_until(is_true: Callable[[], object]) -> None:
    for _ in range(6_000):
        if is_true():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never happened")


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(number) for number in listed.split()]


def serving_processes(url: str) -> int:
    """Return how many processes answer, as the health tells."""
    checks = {
        check["name"]: check for check in httpx.get(f"{url}/health", timeout=60).json()["checks"]
    }
    return PROCESSES if checks["processes"]["status"] == "healthy" else 0


def samples(url: str, metric: str) -> dict[str, float]:
    """Return the value of a metric by its process."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith(metric + "{"):
            process = line.partition('process="')[2].partition('"')[0]
            found[process] = found.get(process, 0.0) + float(line.rpartition(" ")[2])
    return found


def socket_clients(url: str) -> int:
    """Return how many clients of the streaming socket all processes list."""
    clients = httpx.get(f"{url}/clients", timeout=60).json()["clients"]
    return len([client for client in clients if client["kind"] == "socket"])


class Appender(threading.Thread):
    """Appends numbered records over one HTTP connection after the other."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self._url, self._name = url, name
        self.stored: list[str] = []
        self.failures: list[str] = []
        self.is_over = False
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            number = 0
            while not self.is_over:
                value = f"{self._name}-{number}"
                number += 1
                try:
                    answer = client.post("/logs/a/records", json={"value": value})
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    continue
                if answer.status_code == 201:
                    self.stored.append(value)
                else:
                    self.failures.append(answer.text)


def check_stored(path: Path, appenders: list[Appender]) -> None:
    """Every acknowledged record is in the store, once and in order."""
    with millstream.open(path, mode="r") as ms:
        values = [record.value.decode() for record in ms.log("a").read(0)]
    assert len(set(values)) == len(values)
    for appender in appenders:
        stored = set(appender.stored)
        assert [value for value in values if value in stored] == appender.stored


def test_a_rolling_restart_loses_no_request_and_a_killed_process_is_replaced(
    tmp_path: Path,
) -> None:
    with program(tmp_path, "--processes", str(PROCESSES)) as (process, url):
        appenders = [Appender(url, f"p{number}") for number in range(4)]
        wait_until(lambda: all(len(appender.stored) > 3 for appender in appenders))
        before = set(children_of(process))
        assert len(before) == PROCESSES

        process.send_signal(signal.SIGHUP)
        wait_until(lambda: not before & set(children_of(process)))
        wait_until(lambda: serving_processes(url) == PROCESSES)
        assert [appender.failures for appender in appenders] == [[], [], [], []]

        victim = children_of(process)[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in children_of(process))
        wait_until(lambda: len(children_of(process)) == PROCESSES)
        wait_until(lambda: serving_processes(url) == PROCESSES)
        counts = [len(appender.stored) for appender in appenders]
        wait_until(
            lambda: all(
                len(appender.stored) > count + 3
                for appender, count in zip(appenders, counts, strict=True)
            )
        )
        for appender in appenders:
            appender.is_over = True
        for appender in appenders:
            appender.join(60)

        wait_until(lambda: set(samples(url, "millstream_connections")) == {"1", "2"})

        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    check_stored(tmp_path / "store.db", appenders)


def test_clients_staged_parts_and_rooms_know_no_processes(tmp_path: Path) -> None:
    with program(tmp_path, "--processes", str(PROCESSES)) as (process, url):
        # Bulk writers: each request has a connection of its own, and may reach any process.
        for number in range(6):
            name = f"t{number}"
            part = httpx.post(
                f"{url}/staging/{name}/p", json={"records": [{"value": name}]}, timeout=60
            )
            assert part.status_code == 201, part.text
            done = httpx.post(
                f"{url}/staging/{name}/commit",
                json={"log": "bulk", "parts": [part.json()]},
                timeout=60,
            )
            assert done.status_code == 200, done.text
        sessions = [millstream.open(url) for _ in range(8)]
        try:
            assert [record.value for record in sessions[0].log("bulk").read(0)] == [
                f"t{number}".encode() for number in range(6)
            ]
            for session in sessions:
                session.log("bulk").append(b"x")
            wait_until(lambda: socket_clients(url) == 8)
            wait_until(lambda: set(samples(url, "millstream_store_commits_total")) == {"1", "2"})
        finally:
            for session in sessions:
                session.close()
        # The processes stop if the process that started them is gone.
        orphans = children_of(process)
        process.kill()
        process.wait(60)
        wait_until(lambda: not [number for number in orphans if _is_alive(number)])


def _is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def failed_start(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream", "serve", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_every_process_verifies_the_signatures_of_sqs(tmp_path: Path) -> None:
    session = pytest.importorskip("boto3").Session()
    with millstream.open(tmp_path / "store.db") as ms:
        made, text = create_token(ms, "worker", ["admin"])
    with program(tmp_path, "--processes", str(PROCESSES), "--auth", "on") as (_, url):
        for number in range(8):  # a new connection each time, for either process

            def client(secret: str) -> Any:
                return session.client(
                    "sqs",
                    endpoint_url=url,
                    region_name="us-east-1",
                    aws_access_key_id=made.id,
                    aws_secret_access_key=secret,
                )

            queue = client(text).create_queue(QueueName="mail")["QueueUrl"]
            client(text).send_message(QueueUrl=queue, MessageBody=str(number))
            (message,) = client(text).receive_message(QueueUrl=queue)["Messages"]
            assert message["Body"] == str(number)
            client(text).delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            with pytest.raises(Exception, match="SignatureDoesNotMatch"):
                client(text[::-1]).list_queues()


def test_a_reason_not_to_serve_is_printed_once(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_text("this is no database, but long enough to be read as one" * 9)
    done = failed_start(tmp_path, "bad.db", "--port", "0", "--processes", "2")
    assert done.returncode == 2
    assert done.stderr.count("is not a Millstream store") == 1
    assert "Traceback" not in done.stderr


def test_only_a_file_has_several_processes(tmp_path: Path) -> None:
    done = failed_start(tmp_path, "s3://bucket/store", "--processes", "2")
    assert done.returncode == 2
    assert "--processes is for a store in a file" in done.stderr
