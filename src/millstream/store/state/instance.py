"""The instance: which store this is. Written once, with the first commit."""

from __future__ import annotations

import secrets
from typing import ClassVar

from msgspec import Struct

from millstream.format.keys import STORE_KEY
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.entity import Entity
from millstream.store.state.view import View


class Born(Struct, array_like=True, frozen=True):
    """The store exists from now on."""

    id: str
    at_ms: int


class Instance(Entity, array_like=True):
    """A store's own name, and when it was made."""

    id: str = ""
    created_ms: int = 0

    changes: ClassVar = Born

    def apply(self, change: Born) -> None:
        """Take the name."""
        self.id, self.created_ms = change.id, change.at_ms

    def view(self) -> Instance:
        """It never changes, so readers may see it as it is."""
        return self


def create_instance(tx: WriteTransaction) -> None:
    """Name a new store."""
    tx.change(STORE_KEY, Born(secrets.token_hex(8), tx.wall_ms))


def instance_id(view: WriteTransaction | View) -> str:
    """The name of the store that is looked at."""
    return view.entity(STORE_KEY, Instance).id
