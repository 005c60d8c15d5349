"""Jobs in an application of Flask: views put jobs, and a process of its own runs them.

flask --app examples/jobs_flask.py run
python examples/jobs_flask.py
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, request

from millstream import Jobs

app = Flask(__name__)
jobs = Jobs(os.environ.get("SHOP_STORE", "shop.db"))


@jobs.task(max_attempts=3)
def report(customer: str, months: int = 1) -> dict[str, Any]:
    """Count the orders of a customer."""
    return {"customer": customer, "orders": 7 * months}


@app.post("/reports")
def order() -> tuple[dict[str, str], int]:
    """Put a job, and answer at once."""
    job = report.put(request.get_json()["customer"])
    return {"job": job.id}, 202


@app.get("/reports/<id>")
def show(id: str) -> dict[str, Any]:
    """Return the state of a job, and its result if it has one."""
    job = jobs.get(id)
    state = job.state()
    return {"state": state, "result": job.result(timeout=0) if state == "done" else None}


if __name__ == "__main__":
    jobs.worker(concurrency=4).run()  # until SIGTERM; then running jobs finish
