"""Objects below a prefix of a bucket: get, put, conditional replace, list and delete.

Leases, staging, archives and the checks of a bucket use them, beside the objects of SlateDB. Every
call is one request, except a listing.
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
"""Timeout of a request, with its retries."""

METADATA_SERVER = "169.254.169.254"
"""The address at which clients of S3 without credentials ask the machine for some."""

STAGED = "staging"
"""The folder of objects that bulk writers have staged, until the writer adopts them."""


class StoredObject(NamedTuple):
    """An object, and its tag for a conditional replace."""

    data: bytes
    tag: str


class ListedObject(NamedTuple):
    """An object of a listing."""

    name: str
    size: int
    modified_ms: int = 0
    """Time of the last put, by the object store's clock."""


class ObjectReader(io.RawIOBase):
    """An object as a file whose reads are requests."""

    def __init__(self, folder: ObjectFolder, name: str, size: int) -> None:
        self._folder, self._name, self._size = folder, name, size
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes from the position on, or all bytes without a size."""
        unread = max(0, self._size - self._at)
        length = unread if size is None or size < 0 else min(size, unread)
        data = self._folder.get_range(self._name, self._at, length) if length else b""
        self._at += len(data)
        return data


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
        """Return an object, or None."""
        try:
            result = self._module.get(self._store, name)
            return StoredObject(bytes(result.bytes()), tag_of(result.meta))
        except FileNotFoundError:
            return None
        except self._errors.BaseError as error:
            raise self._failed(error) from error

    def create(self, name: str, data: bytes) -> str | None:
        """Create an object and return its tag; None if the object exists."""
        try:
            return tag_of(self._module.put(self._store, name, data, mode="create"))
        except self._errors.AlreadyExistsError:
            return None
        except (self._errors.BaseError, OSError) as error:  # OSError: the bucket does not exist
            raise self._failed(error) from error

    def replace(self, name: str, data: bytes, tag: str) -> str | None:
        """Replace an object with a tag, and return the new tag; None if the tag has changed."""
        try:
            return tag_of(self._module.put(self._store, name, data, mode=condition_of(tag)))
        except (self._errors.PreconditionError, FileNotFoundError):
            return None
        except (self._errors.BaseError, RuntimeError) as error:  # RuntimeError: no support for tags
            raise self._failed(error) from error

    def put(self, name: str, data: bytes) -> str:
        """Create or replace an object, and return its tag."""
        try:
            return tag_of(self._module.put(self._store, name, data))
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def upload(self, name: str, file: Path) -> None:
        """Upload a file of any size as an object."""
        try:
            self._module.put(self._store, name, file)
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def rename(self, name: str, new_name: str) -> None:
        """Rename an object; an object with the new name is replaced."""
        try:
            self._module.rename(self._store, name, new_name)
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def open(self, name: str) -> ObjectReader:
        """Open an object as a file that fetches only the bytes of each read."""
        try:
            return ObjectReader(self, name, int(self._module.head(self._store, name)["size"]))
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def modified_ms(self, name: str) -> int | None:
        """Return the time of an object's last put, by the object store's clock; None without it."""
        try:
            modified = self._module.head(self._store, name)["last_modified"]
            return int(modified.timestamp() * 1000)
        except FileNotFoundError:
            return None
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a range of an object's bytes."""
        try:
            return bytes(self._module.get_range(self._store, name, start=start, length=length))
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def delete(self, name: str) -> None:
        """Delete an object; a missing object is no error."""
        try:
            self._module.delete(self._store, name)
        except FileNotFoundError:
            pass
        except self._errors.BaseError as error:
            raise self._failed(error) from error

    def list(self, prefix: str = "") -> Iterator[ListedObject]:
        """Yield all objects, or the objects of a folder."""
        try:
            for page in self._module.list(self._store, prefix or None):
                for entry in page:
                    modified_ms = int(entry["last_modified"].timestamp() * 1000)
                    yield ListedObject(entry["path"], entry["size"], modified_ms)
        except (self._errors.BaseError, OSError) as error:
            raise self._failed(error) from error

    def _opened(self) -> Any:
        address = self.address
        stores = import_module("obstore.store")
        if address.scheme == "file":
            return stores.LocalStore(f"/{address.prefix}", mkdir=True)
        if address.scheme == "memory":
            return stores.MemoryStore()
        settings = settings_of(address)
        client = {"allow_http": True} if settings.pop("allow_http", "") else {}
        return stores.from_url(
            f"{address.scheme}://{address.bucket}/{address.prefix}",
            client_options=client,
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=REQUEST_S_MAX)},
            **settings,
        )

    def _failed(self, error: BaseException) -> StoreError:
        cause, place = str(error).partition("\n")[0], self.address.text
        if isinstance(
            error, self._errors.PermissionDeniedError | self._errors.UnauthenticatedError
        ):
            text = (
                f"{place} refused a request: the credentials need the rights to read, write, delete and "
                f"list its objects ({cause})"
            )
        elif METADATA_SERVER in cause:
            text = (
                f"{place}: no credentials were found; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        else:
            text = f"{place} does not answer as it should: {cause}"
        return StoreError(text, cause=cause)


def tag_of(facts: Mapping[str, Any]) -> str:
    """Return the tag of an object's state: its entity tag and, if present, its version.

    Amazon S3 and Azure compare the entity tag, Google Cloud Storage compares the version.
    """
    return f"{facts['e_tag']}\n{facts.get('version') or ''}"


def condition_of(tag: str) -> dict[str, str]:
    """Return the condition of a request that an object still has a tag."""
    entity, _, version = tag.partition("\n")
    return {"e_tag": entity, "version": version} if version else {"e_tag": entity}
