"""The errors of a filter, action or pattern: in its syntax, or in its evaluation."""

_EXCERPT_CHARS = 24


class SyntaxProblem(Exception):
    """It cannot be understood. `column` counts from one."""

    def __init__(self, reason: str, text: str, at: int) -> None:
        self.reason = reason
        self.column = at + 1
        self.excerpt = text[at : at + _EXCERPT_CHARS]
        where = f"before {self.excerpt!r}" if self.excerpt else "at the end"
        super().__init__(f"{reason}, in column {self.column}, {where}.")


class EvaluationProblem(Exception):
    """It was understood, but this message gives it no value."""


class TooManyLooks(EvaluationProblem):
    """It takes too long with this message."""

    def __init__(self) -> None:
        super().__init__("The rules of the subscription take too long with this message.")
