"""The errors of our tasks, as Spark reports them."""

_RAISED = "PosthouseError: "  # how a traceback begins the line of what was raised


def sentence_in(error: Exception) -> str | None:
    """The sentence of the PosthouseError that a task has raised; None where it raised another.

    It is read out of the text: Spark hands an exception of a task on as a traceback, and nothing of
    the exception itself.
    """
    lines = [line for line in str(error).splitlines() if _RAISED in line]
    return lines[-1].partition(_RAISED)[2] if lines else None
