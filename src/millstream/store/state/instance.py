"""The instance: the id of a store, written with the first commit."""

from __future__ import annotations

import secrets
from typing import ClassVar

from msgspec import Struct

from millstream.format.keys import STORE_KEY
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.entity import Entity
from millstream.store.state.view import View


class Born(Struct, array_like=True, frozen=True):
    """The creation of a store."""

    id: str
    at_ms: int


class Instance(Entity, array_like=True):
    """The id of a store, and the time of its creation."""

    id: str = ""
    created_ms: int = 0

    changes: ClassVar = Born

    def apply(self, change: Born) -> None:
        """Take the id."""
        self.id, self.created_ms = change.id, change.at_ms

    def view(self) -> Instance:
        """Return the instance, which never changes."""
        return self


def create_instance(tx: WriteTransaction) -> None:
    """Give a new store its id."""
    tx.change(STORE_KEY, Born(secrets.token_hex(8), tx.wall_ms))


def instance_id(view: WriteTransaction | View) -> str:
    """Return the id of the store."""
    return view.entity(STORE_KEY, Instance).id
