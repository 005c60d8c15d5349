"""Tests of this directory may be coroutines."""

from tests.unit.aio.conftest import pytest_pyfunc_call as pytest_pyfunc_call
