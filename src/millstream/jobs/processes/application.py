"""The application of a worker: the object that `MODULE:NAME` names.

Every failure is one sentence for the user who typed the name. An error inside the module itself
keeps its traceback.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

from millstream.errors import MillstreamError

EXAMPLE = "as in `millstream worker shop.tasks:jobs`"


class UnusableApplication(MillstreamError):
    """The name of an application leads to no usable object. Data: `application`."""


def parse_application(name: str) -> tuple[str, str]:
    """Return the module and the attribute of `MODULE:NAME`."""
    module, colon, attribute = name.partition(":")
    words = [*module.split("."), *attribute.split(".")]
    if not colon or not all(word.isidentifier() for word in words):
        raise UnusableApplication(
            f"an application is MODULE:NAME, {EXAMPLE}, not {name!r:.100}", application=name
        )
    return module, attribute


def load_application(name: str, *, folder: str, is_jobs: Callable[[Any], bool]) -> Any:
    """Import the application `MODULE:NAME`, with a folder first on `sys.path`."""
    module_name, attribute = parse_application(name)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _import(name, module_name, folder)
    value = module
    for word in attribute.split("."):
        if not hasattr(value, word):
            raise UnusableApplication(
                f"the module {module_name} has no attribute {attribute!r}"
                + _similar(attribute, _names_of_jobs(module, is_jobs)),
                application=name,
            )
        value = getattr(value, word)
    if not is_jobs(value):
        raise UnusableApplication(
            f"{name} is a {type(value).__name__}, and a worker needs a Jobs object"
            + _similar("", _names_of_jobs(module, is_jobs)),
            application=name,
        )
    return value


def _import(name: str, module_name: str, folder: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != module_name and not module_name.startswith(f"{missing}."):
            reason = f"the module {module_name} imports {missing}, which is not installed"
        else:
            reason = f"there is no module {missing} in {folder} or on sys.path"
        raise UnusableApplication(reason, application=name) from None
    except Exception as error:
        trace = "".join(traceback.format_exception(error)).rstrip()
        raise UnusableApplication(
            f"the module {module_name} cannot be imported: {type(error).__name__}: {error}\n{trace}",
            application=name,
        ) from None


def _names_of_jobs(module: Any, is_jobs: Callable[[Any], bool]) -> list[str]:
    return [name for name, member in vars(module).items() if is_jobs(member)]


def _similar(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1) or names[:1]
    return f"; did you mean {close[0]!r}?" if close else ""
