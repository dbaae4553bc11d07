"""Tells what the rules of the house find: python -m tests.house [--write]."""

import argparse
import sys
from collections.abc import Sequence

from tests.house import rooms, shape, tables, way


def show(title: str, found: Sequence[object]) -> bool:
    print(f"{title}: {len(found)}")
    for each in found:
        print(f"  {each}")
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(prog="house", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the way of a message down")
    options = parser.parse_args()
    well = [
        show("Reads of live state", rooms.live_reads()),
        show("Questions for the kind of a store", rooms.store_kinds()),
        show("Dialects named in server/", rooms.named_dialects()),
        show("Import cycles", shape.cycles(shape.imports())),
    ]
    print(f"Classes with more than {shape.ATTRIBUTES_MAX} attributes:")
    for name, count in shape.large_classes().items():
        reason = tables.LARGE_CLASSES.get(name)
        well.append(reason is not None)
        print(f"  {name} {count}: {reason or 'no reason is known'}")
    found = way.told(way.ways())
    print(f"\n{found}")
    if options.write:
        way.write(found)
    elif found != way.written():
        well.append(False)
        print(f"\n{way.DOCUMENT.name} says something else; --write mends that.", file=sys.stderr)
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
