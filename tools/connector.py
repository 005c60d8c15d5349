"""Compiles the Java of the Spark connector into its jar: `connector.py` writes it, `--check` compares.

The jar is kept with the sources, because users have a Java but seldom a compiler. Its manifest holds a
digest of the sources, so a test without a compiler notices a jar that is older than they are. A JDK of
version 17 or newer and an installed pyspark are needed to write it.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "src/millstream/spark/connector"
JAR = FOLDER / "millstream-spark.jar"
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
MANIFEST = "META-INF/MANIFEST.MF"
WRITTEN = (1980, 1, 1, 0, 0, 0)
RELEASE = "17"


def sources() -> list[Path]:
    """Return the Java files, in order."""
    return sorted((FOLDER / "java").glob("*.java"))


def digest() -> str:
    """Return the digest of the Java files by which a jar shows what it was made of."""
    total = hashlib.sha256()
    for path in sources():
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def digest_of_jar() -> str:
    """Return the digest that the jar holds."""
    with zipfile.ZipFile(JAR) as jar:
        lines = jar.read(MANIFEST).decode().replace("\r\n ", "").splitlines()
    return next(line.split(": ")[1] for line in lines if line.startswith("Source-Digest"))


def build() -> None:
    """Compile the sources and write the jar; the same classes make the same bytes."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "connector: pyspark is not installed; pip install 'millstream[spark-local]'"
        )
    jars = Path(spec.origin).parent / "jars"
    with tempfile.TemporaryDirectory() as classes:
        command = ["javac", "--release", RELEASE, "-g:none", "-nowarn", "-cp", f"{jars}/*"]
        subprocess.run([*command, "-d", classes, *sources()], check=True)
        manifest = f"Manifest-Version: 1.0\nSource-Digest: {digest()[:40]}\n\n"
        entries = {MANIFEST: manifest.encode(), SERVICE: b"millstream.spark.MillstreamProvider\n"}
        for path in sorted(Path(classes).rglob("*.class")):
            entries[path.relative_to(classes).as_posix()] = path.read_bytes()
    with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, content in entries.items():
            jar.writestr(zipfile.ZipInfo(name, WRITTEN), content, zipfile.ZIP_DEFLATED)


def main() -> None:
    """Write the jar, or say that it is older than its sources."""
    if "--check" not in sys.argv:
        build()
    elif digest_of_jar() != digest()[:40]:
        raise SystemExit(f"{JAR.name} is older than its sources: run tools/connector.py")


if __name__ == "__main__":
    main()
