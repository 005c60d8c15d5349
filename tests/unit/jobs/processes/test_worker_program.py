"""`millstream worker` with real processes: what signals, limits, kills and changes do to jobs."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from tests.unit.jobs.processes.programs import SHOP, WorkerProgram

pytestmark = pytest.mark.embedded

JOBS = 40
KILLS = 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    for name in ("release", "never"):
        os.mkfifo(tmp_path / name)
    return tmp_path


@pytest.fixture
def shop(folder: Path) -> Iterator[Any]:
    """The application, imported in this process to put jobs."""
    spec = importlib.util.spec_from_file_location("shop", folder / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shop"] = module
    spec.loader.exec_module(module)
    (folder / "imports").unlink()
    try:
        yield module
    finally:
        module.jobs.close()
        del sys.modules["shop"]


def release(folder: Path) -> None:
    """Let a job go on that waits for the pipe."""
    with open(folder / "release", "wb"):
        pass


def test_jobs_run_and_each_has_a_line_with_its_durations(shop: Any, folder: Path) -> None:
    added, greeted = shop.pid.put(), shop.greet.put("ada")
    with WorkerProgram(folder, "shop:jobs", "--drain", "--metrics-port", "0") as worker:
        assert worker.ended() == 0
    assert [added.state(), greeted.state()] == ["done", "done"]
    assert (folder / "greetings").read_text() == "hello ada\n"
    lines = {line["task"]: line for line in worker.events("job_done")}
    assert lines.keys() == {"shop:pid", "shop:greet"}
    assert lines["shop:pid"]["job"] == added.id
    assert lines["shop:pid"]["waited_ms"] > 0 <= lines["shop:pid"]["ran_ms"]


@pytest.mark.parametrize(
    ("application", "text"),
    [
        ("nowhere:jobs", "there is no module nowhere"),
        ("shop:job", "the module shop has no attribute 'job'; did you mean 'jobs'?"),
        ("shop:pid", "shop:pid is a Task, and a worker needs a Jobs object; did you mean 'jobs'?"),
        ("broken:jobs", "the module broken cannot be imported: ZeroDivisionError"),
        ("needy:jobs", "the module needy imports not_installed, which is not installed"),
        ("homeless:jobs", "homeless:jobs has no store: start the worker with --store PLACE"),
    ],
)
def test_an_application_that_cannot_be_used_is_one_error_and_exit_code_1(
    folder: Path, application: str, text: str
) -> None:
    (folder / "broken.py").write_text("1 / 0")
    (folder / "needy.py").write_text("import not_installed")
    (folder / "homeless.py").write_text(
        "from millstream import Jobs\njobs = Jobs()\n@jobs.task\ndef f() -> None: ...\n"
    )
    with WorkerProgram(folder, application, "--processes", "2") as worker:
        assert worker.ended() == 1
    assert [line.get("level", line) for line in worker.lines] == ["error"]
    assert text in worker.lines[0]["text"]


def test_sigterm_finishes_running_jobs_and_begins_no_others(shop: Any, folder: Path) -> None:
    held, waiting = shop.hold.put("release"), shop.pid.put()
    with WorkerProgram(folder, "shop:jobs", "--concurrency", "1", "--max-jobs", "9") as worker:
        worker.until("ready")
        while not (folder / "held").exists():
            assert worker.process.poll() is None
        worker.process.terminate()
        worker.until("draining")
        release(folder)
        assert worker.ended() == 0
    assert held.state() == "done"
    assert waiting.state() == "waiting"


def test_a_second_signal_ends_at_once(shop: Any, folder: Path) -> None:
    held = shop.hold.put("release")
    with WorkerProgram(folder, "shop:jobs") as worker:
        worker.until("ready")
        while not (folder / "held").exists():
            assert worker.process.poll() is None
        worker.process.terminate()
        worker.until("stopping")
        worker.process.terminate()
        assert worker.ended() == 128 + signal.SIGTERM
    assert held.state() == "running"


def test_a_process_is_replaced_after_its_number_of_jobs(shop: Any, folder: Path) -> None:
    shop.pid.put_many([()] * 5)
    options = ("--drain", "--concurrency", "1", "--max-jobs", "2")
    with WorkerProgram(folder, "shop:jobs", *options) as worker:
        assert worker.ended() == 0
    pids = Counter((folder / "pids").read_text().split())
    assert sorted(pids.values()) == [1, 2, 2]
    assert len(worker.events("child_leaving")) == 2


def test_a_process_is_replaced_when_it_uses_too_much_memory(shop: Any, folder: Path) -> None:
    shop.grow.put_many([(300,), (1,)])
    options = ("--drain", "--concurrency", "1", "--max-memory", "300MB")
    with WorkerProgram(folder, "shop:jobs", *options) as worker:
        assert worker.ended() == 0
    assert len(set((folder / "pids").read_text().split())) == 2
    assert "MiB" in worker.events("child_leaving")[0]["reason"]


def test_a_stalled_process_logs_its_stack_and_is_replaced(shop: Any, folder: Path) -> None:
    handle = shop.hang_once.put()
    with WorkerProgram(folder, "shop:jobs", "--stall", "3s") as worker:
        stalled = worker.until("child_stalled")
        assert stalled["jobs"] == [handle.id]
        assert "in hang_once" in worker.until("stack")["stack"]
        worker.until("job_done", job=handle.id)


def test_a_job_that_ends_its_process_fails_after_its_attempts(shop: Any, folder: Path) -> None:
    shop.pid.put_many([()] * 3)  # begin in the same moment
    handle = shop.leave.put(7)
    with WorkerProgram(folder, "shop:jobs", "--drain") as worker:
        assert worker.ended() == 0
    deaths = worker.events("child_died")
    assert [death["how"] for death in deaths] == ["ended with exit code 7"] * 2
    assert all(f"{handle.id} (shop:leave)" in death["text"] for death in deaths)
    (failed,) = worker.events("job_failed")
    assert failed["job"] == handle.id
    assert failed["reason"] == (
        "AttemptsUsed: 2 attempts ended without a result; the last one: its process ended with exit "
        "code 7"
    )


def test_a_job_over_its_timeout_is_killed_with_its_process(shop: Any, folder: Path) -> None:
    handle, held = shop.overdue.put(), shop.hold.put("release")
    with WorkerProgram(folder, "shop:jobs", "--kill-after", "500ms") as worker:
        failed = worker.until("job_failed", job=handle.id)
        assert "took longer than 0.2 s" in failed["reason"]
        assert worker.until("child_killed")["job"] == handle.id
        release_when_held(folder, worker, times=2)
        done = worker.until("job_done", job=held.id)
    assert done["attempt"] == 2


def test_a_cancelled_job_that_goes_on_is_killed_with_its_process(shop: Any, folder: Path) -> None:
    handle = shop.hold.put("never")
    with WorkerProgram(folder, "shop:jobs", "--kill-after", "500ms") as worker:
        worker.until("ready")
        while not (folder / "held").exists():
            assert worker.process.poll() is None
        assert handle.cancel()
        killed = worker.until("child_killed", job=handle.id)
        assert killed["reason"] == "was cancelled and did not end"
        with pytest.raises(millstream.JobCancelled):
            handle.result(timeout=60)
    assert len((folder / "held").read_text().split()) == 1


def release_when_held(folder: Path, worker: WorkerProgram, times: int) -> None:
    """Release a job as soon as it began for the given number of times."""
    while len((folder / "held").read_text().split()) < times:
        assert worker.process.poll() is None
    release(folder)


def test_a_changed_file_restarts_the_processes(shop: Any, folder: Path) -> None:
    first = shop.version.put()
    with WorkerProgram(folder, "shop:jobs", "--reload") as worker:
        worker.until("job_done", job=first.id)
        (folder / "shop.py").write_text(SHOP.replace("VERSION = 1", "VERSION = 22"))
        worker.until("reloading")
        second = shop.version.put()
        worker.until("job_done", job=second.id)
        (folder / "shop.py").write_text("1 / 0")
        worker.until("application_unusable")
        (folder / "shop.py").write_text(SHOP.replace("VERSION = 1", "VERSION = 333"))
        worker.until("reloading")
        third = shop.version.put()
        worker.until("job_done", job=third.id)
        worker.process.terminate()
        assert worker.ended() == 0
    versions = (folder / "versions").read_text().split()
    assert versions in (
        ["1", "22", "333"],
        ["1", "1", "333"],
    )  # an old process may have been faster


def test_a_fork_server_imports_the_application_once(shop: Any, folder: Path) -> None:
    shop.pid.put_many([()] * 4)
    options = ("--start", "forkserver", "--processes", "2", "--max-jobs", "1", "--drain")
    with WorkerProgram(folder, "shop:jobs", "--concurrency", "1", *options) as worker:
        assert worker.ended() == 0
    pids = set((folder / "pids").read_text().split())
    assert len(pids) == 4
    imports = (folder / "imports").read_text().split()
    assert len(imports) == 1
    assert not pids & set(imports)


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_killed_over_and_over_every_job_is_done(shop: Any, folder: Path, start: str) -> None:
    handles = shop.count.put_many([(n,) for n in range(JOBS)])
    options = ("--concurrency", "1", "--processes", "2", "--lease", "2s", "--drain")
    killed: set[str] = set()
    with WorkerProgram(folder, "shop:jobs", *options, "--start", start) as worker:
        while len(killed) < KILLS:
            worker.until("job_done")
            pid = (folder / "runs").read_text().split()[-1]
            if pid not in killed:
                first = len(handles)
                handles += shop.count.put_many([(n,) for n in range(first, first + JOBS)])
                os.kill(int(pid), signal.SIGKILL)
                killed.add(pid)
        assert worker.ended() == 0
    assert {handle.state() for handle in handles} == {"done"}
    runs: dict[str, list[str]] = {}
    for line in (folder / "runs").read_text().splitlines():
        number, pid = line.split()
        runs.setdefault(number, []).append(pid)
    assert len(runs) == len(handles)
    for number, pids in runs.items():  # only a job whose process was killed runs again
        assert set(pids[:-1]) <= killed, number


def test_jobs_that_a_killed_process_had_not_begun_wait_for_no_lease(
    shop: Any, folder: Path
) -> None:
    before, after = shop.pid.put_many([()] * 300), shop.hang_once.put()
    behind = shop.pid.put_many([()] * 300)
    options = ("--concurrency", "1", "--lease", "1h", "--drain")
    with WorkerProgram(folder, "shop:jobs", *options) as worker:
        worker.until("job_done", job=before[-1].id)
        while not (folder / "hung").exists():  # its claim has usually jobs behind it
            assert worker.process.poll() is None
        os.kill(int((folder / "pids").read_text().split()[-1]), signal.SIGKILL)
        assert worker.ended() == 0
    assert {job.state() for job in [*before, after, *behind]} == {"done"}


def test_processes_of_a_dead_supervisor_finish_their_jobs_and_end(shop: Any, folder: Path) -> None:
    held = shop.hold.put("release")
    with WorkerProgram(folder, "shop:jobs") as worker:
        worker.until("ready")
        while not (folder / "held").exists():
            assert worker.process.poll() is None
        worker.process.kill()
        worker.process.wait()
        release(folder)
        worker.until("job_done", job=held.id)
        worker.ended()  # the last holder of standard error has ended
    assert held.state() == "done"


def test_the_service_manager_hears_of_ready_watchdog_and_stopping(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        variables = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "400000"}
        with WorkerProgram(folder, "shop:jobs", **variables) as worker:
            heard = set()
            while not {"READY=1", "WATCHDOG=1"} <= heard:
                heard.add(manager.recv(100).decode())
            worker.process.terminate()
            while "STOPPING=1" not in heard:
                heard.add(manager.recv(100).decode())
            assert worker.ended() == 0


def test_metrics_count_each_task(shop: Any, folder: Path) -> None:
    done = shop.pid.put()
    with WorkerProgram(folder, "shop:jobs", "--metrics-port", "0") as worker:
        port = worker.until("metrics")["port"]
        worker.until("job_done", job=done.id)
        wanted = 'millstream_job_done_total{task="shop:pid"} 1'
        while wanted not in (text := scrape(port)):
            assert worker.process.poll() is None
    assert 'millstream_job_started_total{task="shop:pid"} 1' in text
    assert "millstream_worker_processes 1" in text


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())
