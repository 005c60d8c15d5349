"""Topologies: the logs, queues, rooms, schedules and tokens that a store should have, in one file.

`apply` changes a store so that it has what a file describes, and `dump` describes a store.
"""

from millstream.topology.applying import Applied, apply, dump, plan
from millstream.topology.model import TopologyChange, TopologyPlan, TopologyRefused

__all__ = ["Applied", "TopologyChange", "TopologyPlan", "TopologyRefused", "apply", "dump", "plan"]
