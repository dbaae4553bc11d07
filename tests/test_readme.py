"""What the README shows has to work."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def run(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_example_prints_what_it_says() -> None:
    [example] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    [said] = re.findall(r"print\(.*\) +# (.*)", example)
    assert run("-c", example).strip() == said
