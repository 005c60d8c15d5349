"""Objects beside SlateDB's own: how a store's prefix in a bucket is looked at, probed and leased.

Names are below the store's prefix. Every call is one request, except a listing.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from millstream.errors import CannotOpen, StoreError
from millstream.objects.address import ObjectAddress, settings_of

REQUEST_S_MAX = 30.0
"""How long one request may take, its repeats included."""

STAGED = "staging"
"""The folder of what bulk writers have staged, and the writer has not adopted yet."""


class StoredObject(NamedTuple):
    """An object, and the tag by which it can be replaced if it is still the same."""

    data: bytes
    tag: str


class ListedObject(NamedTuple):
    """An object of a listing."""

    name: str
    size: int
    modified_ms: int = 0
    """When it was put, by the object store's clock."""


class ObjectReader(io.RawIOBase):
    """An object as a file: each read is a request."""

    def __init__(self, folder: ObjectFolder, name: str, size: int) -> None:
        self._folder, self._name, self._size = folder, name, size
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Say where the next read begins."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Some bytes from there on, or all of them."""
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        found = self._folder.get_range(self._name, self._at, length) if length else b""
        self._at += len(found)
        return found


class ObjectFolder:
    """The objects below one store's prefix."""

    def __init__(self, address: ObjectAddress) -> None:
        try:
            self._module = import_module("obstore")
        except ModuleNotFoundError:
            raise CannotOpen(
                "object storage needs obstore: pip install 'millstream[s3]'", path="obstore"
            ) from None
        self.address = address
        self._errors = import_module("obstore.exceptions")
        self._store = self._opened()

    def get(self, name: str) -> StoredObject | None:
        """An object, or None."""
        try:
            found = self._module.get(self._store, name)
            return StoredObject(bytes(found.bytes()), tag_of(found.meta))
        except FileNotFoundError:
            return None
        except self._errors.BaseError as error:
            raise self._failed(error) from error

    def create(self, name: str, data: bytes) -> str | None:
        """Put an object that is not there yet; its tag, or None if it is there."""
        try:
            return tag_of(self._module.put(self._store, name, data, mode="create"))
        except self._errors.AlreadyExistsError:
            return None
        except (self._errors.BaseError, OSError) as error:  # also: there is no such bucket
            raise self._failed(error) from error

    def replace(self, name: str, data: bytes, tag: str) -> str | None:
        """Put an object if it is still the one with that tag; its new tag, or None if it is not."""
        try:
            return tag_of(self._module.put(self._store, name, data, mode=condition_of(tag)))
        except (self._errors.PreconditionError, FileNotFoundError):
            return None
        except (self._errors.BaseError, RuntimeError) as error:  # also: it knows no tags
            raise self._failed(error) from error

    def put(self, name: str, data: bytes) -> str:
        """Put an object, whatever is there; its tag."""
        try:
            return tag_of(self._module.put(self._store, name, data))
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def upload(self, name: str, file: Path) -> None:
        """Put a file of any size."""
        try:
            self._module.put(self._store, name, file)
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def rename(self, name: str, wanted: str) -> None:
        """Give an object another name, in the place of what is there."""
        try:
            self._module.rename(self._store, name, wanted)
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def open(self, name: str) -> ObjectReader:
        """An object as a file that fetches what is read of it."""
        try:
            return ObjectReader(self, name, int(self._module.head(self._store, name)["size"]))
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def modified_ms(self, name: str) -> int | None:
        """When an object was put, by the object store's clock; None if there is none."""
        try:
            found = self._module.head(self._store, name)["last_modified"]
            return int(found.timestamp() * 1000)
        except FileNotFoundError:
            return None
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Some bytes of an object."""
        try:
            return bytes(self._module.get_range(self._store, name, start=start, length=length))
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def delete(self, name: str) -> None:
        """Remove an object; one that is missing is no error."""
        try:
            self._module.delete(self._store, name)
        except FileNotFoundError:
            pass
        except self._errors.BaseError as error:
            raise self._failed(error) from error

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        """All objects, or those in a folder."""
        try:
            for found in self._module.list(self._store, prefix or None):
                for one in found:
                    modified_ms = int(one["last_modified"].timestamp() * 1000)
                    yield ListedObject(one["path"], one["size"], modified_ms)
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def _opened(self) -> Any:
        address = self.address
        stores = import_module("obstore.store")
        if address.scheme == "file":
            return stores.LocalStore(f"/{address.prefix}", mkdir=True)
        if address.scheme == "memory":
            return stores.MemoryStore()
        given = settings_of(address)
        client = {"allow_http": True} if given.pop("allow_http", "") else {}
        return stores.from_url(
            f"{address.scheme}://{address.bucket}/{address.prefix}",
            client_options=client,
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=REQUEST_S_MAX)},
            **given,
        )

    def _failed(self, error: BaseException) -> StoreError:
        said = str(error).partition("\n")[0]
        return StoreError(f"{self.address.text} does not answer as it should: {said}", cause=said)


def tag_of(facts: Mapping[str, Any]) -> str:
    """What tells one state of an object from another: its entity tag, and its version if it has one.

    Amazon S3 and Azure compare the entity tag, Google Cloud Storage the version.
    """
    return f"{facts['e_tag']}\n{facts.get('version') or ''}"


def condition_of(tag: str) -> dict[str, str]:
    """That an object is still in the state of a tag, as a request says it."""
    entity, _, version = tag.partition("\n")
    return {"e_tag": entity, "version": version} if version else {"e_tag": entity}
