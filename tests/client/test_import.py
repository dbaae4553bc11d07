"""What `import posthouse` offers, and what it costs."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import posthouse

HEAVY = {"fastapi", "pyarrow", "pyspark", "cryptography", "azure", "boto3", "botocore", "pydantic",
         "uvicorn", "prometheus_client", "zstandard"}  # fmt: skip


def loaded(program: str) -> set[str]:
    """Top-level packages, and modules of ours, that a program has loaded at its end."""
    program += "\nimport sys\nprint(*sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = done.stdout.decode().split()
    return {each if each.startswith("posthouse") else each.partition(".")[0] for each in modules}


def test_to_import_it_loads_next_to_nothing() -> None:
    found = loaded("import posthouse")
    assert not found & (HEAVY | {"asyncio", "msgspec", "logging", "ssl"})
    assert {each for each in found if each.startswith("posthouse")} == {"posthouse"}


def test_to_make_a_client_loads_nothing_heavy() -> None:
    found = loaded("import posthouse; posthouse.create_client('memory://')")
    assert not found & HEAVY
    assert {"posthouse.client.memory", "msgspec"} <= found
    unused = {"azure", "sqs", "wire", "encryption", "compression", "codecs", "sync"}
    assert not found & {f"posthouse.client.{each}" for each in unused}


def test_the_three_lists_of_names_agree() -> None:
    typed: dict[str, str] = {}
    [checking] = [
        each
        for each in ast.parse(Path(posthouse.__file__).read_text()).body
        if isinstance(each, ast.If)
    ]
    for each in checking.body:
        assert isinstance(each, ast.ImportFrom)
        assert each.module is not None
        typed |= {name.name: each.module.rpartition(".")[2] for name in each.names}
    assert typed == posthouse._WHERE
    assert sorted(typed) == posthouse.__all__
    assert sum(map(len, posthouse._NAMES.values())) == len(typed)


def test_every_name_can_be_had() -> None:
    for name in posthouse.__all__:
        module = import_module(f"posthouse.client.{posthouse._WHERE[name]}")
        assert getattr(posthouse, name) is getattr(module, name)
    assert set(posthouse.__all__) <= set(dir(posthouse))


def test_a_name_that_is_not_there_is_an_error() -> None:
    assert not hasattr(posthouse, "nonsense")
