"""Promise: through a server's address everything works as on a path, and no secret is shown."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream
from millstream import Millstream
from millstream.errors import CannotOpen
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.integration.programs import program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.embedded

LONG = int(os.environ.get("MILLSTREAM_SPARK_KILLS", "0"))
"""Whether long tests run too: `make faults` says so."""

REQUEST_BYTES_MAX = 256 * 1024 * 1024
"""More than any request or answer of a server may hold."""

JOB_BYTES = (330_000_000, 900_000_000)
"""Of jobs that need no more memory of a server the larger they are."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(
        tmp_path / "served.db", Settings(port=0, stop_s=1.0), durability="relaxed"
    ) as found:
        yield found


def address(server: Serving) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def store(server: Serving) -> Iterator[Millstream]:
    with millstream.open(address(server)) as opened:
        yield opened


def load(spark: SparkSession, server: Serving, **options: Any) -> DataFrame:
    reader = spark.read.format("millstream").option("server", address(server))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def write(rows: DataFrame, server: Serving, **options: Any) -> None:
    writer = rows.write.format("millstream").mode("append").option("server", address(server))
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def test_reading_and_writing(spark: SparkSession, server: Serving, store: Millstream) -> None:
    store.log("from").append_many(
        [b"%d" % i for i in range(3_000)], headers=[{"n": i} for i in range(3_000)]
    )
    rows = load(spark, server, subscribe="from", typedHeaders="true", minPartitions=2)
    write(rows.select("key", "value", "headers"), server, log="to")
    for _ in range(2):
        write(rows.limit(5).select("value"), server, log="to", txnAppId="a", txnVersion=1)

    found = list(store.log("to").read())
    assert [record.value for record in found[:3_000]] == [b"%d" % i for i in range(3_000)]
    assert [dict(record.headers)["n"] for record in found[:3_000]] == list(range(3_000))
    assert len(found) == 3_005


def test_a_stream_from_log_to_queue(
    spark: SparkSession, server: Serving, store: Millstream, tmp_path: Path
) -> None:
    queue = store.queue("work", lease=30)
    store.log("from").append_many([b"%d" % i for i in range(100)])
    for _ in range(2):
        rows = (
            spark.readStream.format("millstream")
            .option("server", address(server))
            .option("subscribe", "from")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 40)
            .option("cursor", "spark")
            .load()
        )
        writer = rows.select("value").writeStream.format("millstream")
        writer = writer.option("server", address(server)).option("queue", "work")
        writer = writer.option("checkpointLocation", str(tmp_path / "cp"))
        writer.trigger(availableNow=True).start().awaitTermination()

    assert [int(message.value) for message in queue.claim(200)] == list(range(100))
    (cursor,) = store.log("from").cursors()
    assert cursor.lag == 0
    assert load(spark, server, queue="work", state="in_flight").count() == 100


def test_messages_are_assigned(spark: SparkSession, server: Serving, store: Millstream) -> None:
    queue = store.queue("picked", sources=["from"], router="spark", start="earliest")
    store.log("from").append_many([b"%d" % i for i in range(100)])
    rows = load(spark, server, subscribe="from", metadataOnly="true").where("offset % 10 = 0")
    for _ in range(2):
        write(rows.selectExpr("topic", "offset", "'picked' as queue"), server, assign="true")
    assert [int(message.value) for message in queue.claim(100)] == list(range(0, 100, 10))


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.faults
@pytest.mark.skipif(not LONG, reason="only `make faults` writes so much")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("job_bytes", JOB_BYTES)
def test_a_job_of_more_than_any_request_holds_is_one_commit_in_bounded_memory(
    spark: SparkSession, tmp_path: Path, job_bytes: int
) -> None:
    with program(tmp_path) as (process, url), millstream.open(url) as store:
        store.log("small").append(b"1")
        before = peak_bytes(process.pid)
        rows = spark.range(0, job_bytes // 1_000_000, 1, 2).selectExpr(
            "repeat(sha2(string(id), 256), 15625) as value"
        )
        writer = rows.write.format("millstream").mode("append")
        writer.options(server=url, log="to").save()
        needed = peak_bytes(process.pid) - before
        assert store.log("to").end_offset() == job_bytes // 1_000_000
        reader = spark.read.format("millstream").options(server=url, subscribe="to")
        sizes = reader.load().selectExpr("sum(length(value)) as size").first()
    assert sizes is not None
    assert sizes["size"] == job_bytes > REQUEST_BYTES_MAX
    print(f"a job of {job_bytes:,} bytes needed {needed:,} bytes of the server's memory")
    assert needed < REQUEST_BYTES_MAX, needed


def test_a_failed_job_leaves_nothing(
    spark: SparkSession, server: Serving, store: Millstream
) -> None:
    broken = spark.range(0, 30_000, 1, 2).selectExpr(
        "if(id = 29999, cast(raise_error('no luck') as string), cast(id as string)) as value"
    )
    with pytest.raises(Exception, match="no luck"):
        write(broken, server, log="to")
    assert store.log("to").end_offset() == 0


def test_tokens_are_shown_to_the_server_and_to_nobody_else(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with millstream.open(tmp_path / "s.db") as opened:
        _, secret = create_token(opened, "writer", ["log:write"])
        _, reader = create_token(opened, "reader", ["log:read"])
    settings = Settings(port=0, stop_s=1.0, auth="on")
    with running(tmp_path / "s.db", settings, durability="relaxed") as server:
        (tmp_path / "token").write_text(secret + "\n")
        rows = spark.range(10).selectExpr("cast(id as string) as value")
        write(rows, server, log="to", tokenFile=str(tmp_path / "token"))
        found = load(spark, server, subscribe="to", token=secret)
        assert found.count() == 10
        found.explain(True)
        shown = capsys.readouterr().out + found._jdf.queryExecution().toString()
        assert "millstream" in shown
        assert secret not in shown

        for options, message in (
            ({"token": reader}, "may not"),
            ({"token": secret[:-4] + "oops"}, "valid token"),
            ({"tokenFile": "/nowhere"}, f"cannot be read on {platform.node()}"),
        ):
            with pytest.raises(Exception, match=message) as caught:
                write(rows, server, log="to", **options)
            assert secret[:-4] not in str(caught.value)
            assert reader not in str(caught.value)
        assert found.count() == 10


def test_a_path_of_another_machine_is_refused_with_advice(tmp_path: Path) -> None:
    from millstream.spark.place import Place, check_here, reading

    place = Place(url=str(tmp_path / "s.db"), host="elsewhere")
    with pytest.raises(CannotOpen, match=f"on elsewhere, and this task runs on {platform.node()}"):
        check_here(place)
    with pytest.raises(CannotOpen, match="give its address in the option server"), reading(place):
        pass


def test_a_task_cannot_write(tmp_path: Path) -> None:
    from millstream.spark.place import make_place, reading

    with millstream.open(tmp_path / "s.db") as opened:
        opened.log("a").append(b"x")
        place = make_place(str(tmp_path / "s.db"), server="")
        with reading(place) as session:
            log = Millstream(session).log("a")
            assert len(list(log.read())) == 1
            with pytest.raises(CannotOpen, match="opened to be read only"):
                log.append(b"y")
        assert opened.log("a").end_offset() == 1
