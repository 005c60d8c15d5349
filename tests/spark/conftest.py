"""One Spark for all tests of this suite, and one Java at a time.

A test that asks for `spark` gets the session that all share; what it set or left running is undone
after it. A test that starts a Spark in another process asks for `no_spark`: the shared one is ended
before it. Such tests run last, so that the shared one is started once.

Half of what a Java does in a test is to load Spark's classes. Where Python has a cache of bytecode
apart from the sources, as in `make test`, the first shared session writes an archive of its classes
there when it ends, and every Java after it begins with that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.spark.local.java import find_java
from millstream.spark.local.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
MEMORY = "1500m"

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For every Java that a test starts: none lives long enough to gain from what is compiled a second
time, or collected by threads of its own. That is a third of the processor's time."""

ENDING_S = 300.0
"""How long a Java may take to end: the one that writes the archive takes a while."""


class ClassArchive:
    """The file of Spark's classes, if there is a place for it.

    The file's name ends with its size: a Java that maps an unfinished file ends with a bus error.
    """

    def __init__(self) -> None:
        import pyspark

        prefix = sys.pycache_prefix
        # A space would end the option of Java.
        self._folder = None if prefix is None or " " in prefix else Path(prefix) / "millstream"
        java = find_java()
        named = "\n".join((pyspark.__version__, pyspark.__file__, str(java.home), str(java.major)))
        self._name = f"spark-{blake2b(named.encode(), digest_size=8).hexdigest()}"

    def find(self) -> Path | None:
        """Return the finished file, or None."""
        if self._folder is None:
            return None
        for path in self._folder.glob(f"{self._name}-*.jsa"):
            if path.name == f"{self._name}-{path.stat().st_size}.jsa":
                return path
        return None

    def draft(self) -> Path | None:
        """Return the path that a Java of this process writes to, or None without a folder."""
        if self._folder is None:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{self._name}.{os.getpid()}"

    def keep(self, draft: Path) -> None:
        """Give a complete draft its final name."""
        draft.rename(draft.with_name(f"{self._name}-{draft.stat().st_size}.jsa"))


class SharedSpark:
    """A session that is started when it is first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._session: SparkSession | None = None
        self._archive = ClassArchive()

    def java_options(self) -> str:
        """Return the options of every Java that is started now."""
        archive = self._archive.find()
        if archive is None:
            return JAVA_OPTIONS
        return f"{JAVA_OPTIONS} -XX:SharedArchiveFile={archive} -Xlog:disable"

    def _settings(self) -> dict[str, str]:
        draft = self._archive.draft()
        if draft is None or self._archive.find() is not None:
            return {}
        options = f"-XX:ArchiveClassesAtExit={draft} -Xlog:disable"
        return {"spark.driver.extraJavaOptions": options}

    def get(self) -> SparkSession:
        """The session, running."""
        if self._session is None:
            self._session = local_session(
                name="tests",
                master="local[2]",
                memory=MEMORY,
                directory=self._directory,
                settings={
                    "spark.sql.shuffle.partitions": "2",
                    "spark.sql.streaming.stopTimeout": "60s",
                    **self._settings(),
                },
            )
        return self._session

    def end(self) -> None:
        """Stop the session and its Java, which `stop()` alone leaves running."""
        if self._session is None:
            return
        from pyspark import SparkContext

        self._session.stop()
        self._session = None
        gateway = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=ENDING_S)
        draft = self._archive.draft()
        if draft is not None and draft.exists():
            self._archive.keep(draft)
            os.environ["JDK_JAVA_OPTIONS"] = self.java_options()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """AcknowledgedRanges this suite's tests, and puts those last that start a Java of their own."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.requires("spark"))
        # Py4J and Spark leave sockets to the garbage collector.
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    alone = [item for item in ours if "no_spark" in getattr(item, "fixturenames", ())]
    if alone:
        later = set(alone)
        items[:] = [item for item in items if item not in later] + alone


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    """The holder of the one session; ask for `spark` or `no_spark` instead."""
    shared = SharedSpark(tmp_path_factory.mktemp("spark"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "JDK_JAVA_OPTIONS", shared.java_options()
        )  # also those in processes of their own
        yield shared
        shared.end()


@pytest.fixture
def spark(shared_spark: SharedSpark) -> Iterator[SparkSession]:
    """The session that all tests share, as it was started."""
    session = shared_spark.get()
    before = session.conf.getAll
    yield session
    for query in session.streams.active:
        query.stop()
    session.catalog.clearCache()
    for found in session.catalog.listTables():
        kind = "VIEW" if found.isTemporary else "TABLE"
        session.sql(f"DROP {kind} `{found.name}`")
    after = session.conf.getAll
    for name in after.keys() - before.keys():
        session.conf.unset(name)
    for name, value in before.items():
        if after.get(name) != value:
            session.conf.set(name, value)


@pytest.fixture
def no_spark(shared_spark: SharedSpark) -> None:
    """Ends the shared session: this test starts a Java of its own."""
    shared_spark.end()
