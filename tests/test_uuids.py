"""Ids: of the right form, and never twice."""

import os
from uuid import RFC_4122, UUID

from posthouse.uuids import new_uuid, new_uuids


def test_they_are_random_uuids_and_all_different() -> None:
    found = [*new_uuids(1_000), *new_uuids(3), *new_uuids(0), *(new_uuid() for _ in range(300))]
    assert len(found) == len(set(found)) == 1_303
    read = list(map(UUID, found))
    assert list(map(str, read)) == found
    assert {each.version for each in read} == {4}
    assert {each.variant for each in read} == {RFC_4122}
    assert all(len({text[at] for text in found}) > 3 for at in (0, 15, 19, 35))


def test_a_child_process_makes_its_own() -> None:
    new_uuid()  # there are some that nobody has yet
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, new_uuid().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100).decode() not in new_uuids(256)
    os.close(reading)
    os.close(writing)
