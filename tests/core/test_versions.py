"""The version of records that a node has to know, found in all that a record holds."""

import msgspec
import pytest

from posthouse.core import versions


class Inner(msgspec.Struct):
    new: int = 0


class Outer(msgspec.Struct):
    by_name: dict[str, Inner]


def test_a_field_is_found_among_values_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "FIELDS", {Inner: {"new": 2}})
    assert versions.version_needed([Outer({"a": Inner()})]) == 1
    assert versions.version_needed([Outer({"a": Inner(), "b": Inner(1)})]) == 2
