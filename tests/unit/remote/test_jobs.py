"""Jobs whose store is elsewhere: behind a server. Each kind of job ends as on a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kit.jobs import every_kind_of_job

if TYPE_CHECKING:
    from millstream.server.serving import Serving


def test_jobs_behind_a_server(server: Serving) -> None:
    every_kind_of_job(server.url)
