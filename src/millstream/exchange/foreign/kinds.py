"""The systems whose queues can be moved. Without imports: the command line starts fast."""

from __future__ import annotations

from enum import StrEnum


class SourceKind(StrEnum):
    """The system of another queue."""

    REDIS_LIST = "redis-list"
    RQ = "rq"
    HUEY = "huey"
    CELERY_REDIS = "celery-redis"
    SQS = "sqs"
