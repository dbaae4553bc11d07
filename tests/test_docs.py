"""Documents for users can be followed by a reader who knows other brokers.

A sentence has at most 30 words, and those that readers could not follow do not come back. The
formats of the journal and the figures of benchmarks are for other readers, and not looked at.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS_MAX = 30
USERS = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs" / f"{name}.md" for name in ("bridge", "client", "model", "pipeline")),
        *(ROOT / "docs" / f"{name}.md" for name in ("server", "testing", "worker")),
        *(ROOT / "docs" / "dialects").glob("*.md"),
    ]
)
# The field's own word (offset, inclusive, slot, round trip, idempotency key) was avoided in these.
AVOIDED = (
    "goes along by value", "spares them", "from the first on", "to before the last",
    "never too much", "or else what its row says", "come out differently", "the next but one",
    "has a default beside", "it is another's", "its place is another", "saves ways",
    "for so long", "it is his who", "what is missing is unknown", "only what is true",
)  # fmt: skip


def paragraphs(text: str) -> list[str]:
    """Paragraphs, items of lists and cells of tables, each as one line; examples are left out."""
    found: list[str] = []
    gathered: list[str] = []

    def end() -> None:
        if gathered:
            found.append(" ".join(gathered))
            gathered.clear()

    for line in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n"):
        if line.startswith("|"):
            end()
            found.extend(cell.strip() for cell in line.strip("|").split("|"))
        elif not line.strip() or (line.startswith("    ") and not gathered):
            end()
        else:
            if re.match(r"\s*[-*] |\d+\. |#", line):
                end()
            gathered.append(line.strip())
    end()
    return found


def sentences(text: str) -> list[str]:
    return [
        sentence
        for paragraph in paragraphs(text)
        for sentence in re.split(r"(?<=[.:;!?])\s+", paragraph)
    ]


@pytest.mark.parametrize("file", USERS, ids=lambda file: str(file.relative_to(ROOT)))
def test_sentences_are_short(file: Path) -> None:
    found = [each for each in sentences(file.read_text()) if len(each.split()) > WORDS_MAX]
    assert not found, "make two sentences, or a list, of each"


@pytest.mark.parametrize("file", USERS, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_readers_could_not_follow_does_not_come_back(file: Path) -> None:
    text = " ".join(file.read_text().split())
    assert not [each for each in AVOIDED if each in text]


def test_a_long_sentence_is_found_wherever_it_is() -> None:
    long = "word " * WORDS_MAX + "end."
    for text in (f"Short. {long}\n", f"| a | {long} |\n", f"- a\n- {long}\n", f"One\n{long}\n"):
        assert [each for each in sentences(text) if len(each.split()) > WORDS_MAX], text
    assert not [each for each in sentences(f"    {long}") if len(each.split()) > WORDS_MAX]
