"""The errors of Spark and of our tasks, as one sentence."""

import re

_RAISED = "PosthouseError: "  # how a traceback begins the line of what was raised
# Spark's own errors have a class, a sentence, an SQLSTATE, and a place. Plans and traces follow.
_CODED = re.compile(r"\[[A-Z][A-Z0-9_.]{3,}\] ([^\n]+)")
_STATE = re.compile(r"\s*SQLSTATE: \w+;?")
# Others come as Java names them, behind a line that names the call.
_JAVA = re.compile(r"^: (?:[\w.$]+: )?([^\n]+)", re.MULTILINE)


def sentence_in(error: Exception) -> str | None:
    """The sentence of the PosthouseError that a task has raised; None where it raised another.

    It is read out of the text: Spark hands an exception of a task on as a traceback, and nothing of
    the exception itself.
    """
    lines = [line for line in str(error).splitlines() if _RAISED in line]
    return lines[-1].partition(_RAISED)[2] if lines else None


def sentence_of(error: Exception) -> str:
    """One line that says what went wrong: our task's, or the first of Spark's."""
    text = str(error).strip()
    found = _CODED.search(text) or _JAVA.search(text)
    line = found[1] if found is not None else text.partition("\n")[0]
    return sentence_in(error) or _STATE.sub("", line).strip().rstrip(":;,")
