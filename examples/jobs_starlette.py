"""Jobs in an application of Starlette, or of FastAPI, which has the same lifespan.

The worker runs in the lifespan of the application, beside its requests:

    uvicorn --app-dir examples jobs_starlette:app

or in a process of its own, while SHOP_WORKER=process tells the application to start none:

    SHOP_WORKER=process uvicorn --app-dir examples jobs_starlette:app
    python examples/jobs_starlette.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from millstream.aio import Jobs

jobs = Jobs(os.environ.get("SHOP_STORE", "shop.db"))


@jobs.task(max_attempts=3)
async def thumbnail(picture: str, size: int = 128) -> str:
    """Make a small picture. A plain function would run on a thread of the worker."""
    await asyncio.sleep(0)
    return f"{picture}@{size}"


async def order(request: Request) -> JSONResponse:
    """Put a job, and answer at once."""
    job = await thumbnail.put((await request.json())["picture"])
    return JSONResponse({"job": job.id}, status_code=202)


async def show(request: Request) -> JSONResponse:
    """Wait up to 10 seconds for the result of a job."""
    job = await jobs.get(request.path_params["id"])
    try:
        return JSONResponse({"result": await job.result(timeout=10)})
    except TimeoutError:
        return JSONResponse({"state": await job.state()}, status_code=202)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Run a worker while the application runs; its running jobs finish at the end."""
    async with jobs:
        if os.environ.get("SHOP_WORKER") == "process":
            yield
        else:
            async with jobs.worker(concurrency=4):
                yield


async def work(*, drain: bool = False) -> None:
    """Run jobs until SIGTERM, or until no job is left."""
    async with jobs:
        await jobs.worker(concurrency=4).run(drain=drain)


app = Starlette(
    routes=[
        Route("/thumbnails", order, methods=["POST"]),
        Route("/thumbnails/{id}", show),
    ],
    lifespan=lifespan,
)

if __name__ == "__main__":
    asyncio.run(work())
