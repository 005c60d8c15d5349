"""Addresses of object storage: what they mean, and where credentials come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.engine.place import is_address, is_bucket
from millstream.errors import CannotOpen
from millstream.objects.address import ObjectAddress, parse_address, settings_of


@pytest.mark.parametrize(
    ("text", "found", "shown"),
    [
        ("s3://shop/orders", ("s3", "shop", "orders"), "s3://shop/orders"),
        ("S3://shop/orders/eu/", ("s3", "shop", "orders/eu"), "s3://shop/orders/eu"),
        ("s3://shop", ("s3", "shop", "millstream"), "s3://shop/millstream"),
        ("gs://shop/a", ("gs", "shop", "a"), "gs://shop/a"),
        ("az://shop/a", ("az", "shop", "a"), "az://shop/a"),
        ("file:///var/data/a%20b", ("file", "", "var/data/a b"), "file:///var/data/a b"),
        ("memory://", ("memory", "", "store"), "memory:///store"),
    ],
)
def test_an_address_names_a_bucket_and_a_prefix(
    text: str, found: tuple[str, str, str], shown: str
) -> None:
    address = parse_address(text)
    assert tuple(address) == (*found, "")
    assert address.text == shown
    assert is_bucket(text)
    assert not is_address(text)


def test_what_an_address_sets_is_not_shown() -> None:
    address = parse_address("s3://shop/orders?pace_s=0&cache_folder=/a%20b")
    assert address == ("s3", "shop", "orders", "pace_s=0&cache_folder=/a%20b")
    assert address.text == "s3://shop/orders"


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3:///prefix",
        "s3://key:secret@shop/a",
        "s3://shop/a#x",
        "file://host/a",
        "s3:/a",
    ],
)
def test_what_is_no_address_is_refused_without_showing_a_secret(text: str) -> None:
    with pytest.raises(CannotOpen) as refused:
        parse_address(text)
    assert "secret" not in str(refused.value)


S3 = ObjectAddress("s3", "shop", "a")


def test_variables_of_the_environment_are_left_to_the_object_store(tmp_path: Path) -> None:
    given = {"AWS_ACCESS_KEY_ID": "k", "AWS_REGION": "eu-west-1", "HOME": str(tmp_path)}
    assert settings_of(S3, given) == {}
    assert settings_of(ObjectAddress("gs", "shop", "a"), {}) == {}


def test_an_endpoint_without_encryption_is_allowed_if_it_is_named(tmp_path: Path) -> None:
    given = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "HOME": str(tmp_path),
    }
    assert settings_of(S3, given) == {
        "endpoint": "http://127.0.0.1:1",
        "allow_http": "true",
        "region": "us-east-1",
    }


def test_credentials_come_from_the_named_profile(tmp_path: Path) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = e\n"
        "[work]\naws_access_key_id = w\naws_secret_access_key = x%y\n"
    )
    (folder / "config").write_text("[profile work]\nregion = eu-central-1\n")
    home = {"HOME": str(tmp_path)}
    assert settings_of(S3, home) == {
        "access_key_id": "d",
        "secret_access_key": "e",
        "region": "us-east-1",
    }
    assert settings_of(S3, {**home, "AWS_PROFILE": "work"}) == {
        "access_key_id": "w",
        "secret_access_key": "x%y",
        "region": "eu-central-1",
    }


@pytest.mark.parametrize("host", ["127.0.0.1:4443", "http://127.0.0.1:4443/"])
def test_an_emulator_of_googles_is_asked_without_credentials(host: str) -> None:
    found = settings_of(ObjectAddress("gs", "shop", "a"), {"STORAGE_EMULATOR_HOST": host})
    assert found.pop("allow_http") == "true"
    account = json.loads(found.pop("service_account_key"))
    assert (account["gcs_base_url"], account["disable_oauth"]) == ("http://127.0.0.1:4443", True)
    assert not found


def test_an_emulator_of_googles_may_be_encrypted() -> None:
    given = {"STORAGE_EMULATOR_HOST": "https://storage.test"}
    assert "allow_http" not in settings_of(ObjectAddress("gs", "shop", "a"), given)
