"""The workloads of operators: exports, imports, backups, restores and compaction."""

from __future__ import annotations

from millstream.bench.backups import backup_full, backup_increment, restore
from millstream.bench.compact import compact
from millstream.bench.exchange import export, import_
from millstream.bench.ops_bench import OpsBench
from millstream.bench.suite import Suite

SUITE = Suite(OpsBench, export, import_, backup_full, backup_increment, restore, compact)
