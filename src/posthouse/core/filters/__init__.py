"""Which messages go where: SQL and correlation filters, SQL actions, and wildcard patterns."""

from posthouse.core.filters.correlation import compile_correlation
from posthouse.core.filters.patterns import Style, Trie, check_pattern
from posthouse.core.filters.problems import EvaluationProblem, SyntaxProblem
from posthouse.core.filters.sql import compile_action, compile_filter
from posthouse.core.filters.view import Action, Amendment, Predicate, View

__all__ = [
    "Action",
    "Amendment",
    "EvaluationProblem",
    "Predicate",
    "Style",
    "SyntaxProblem",
    "Trie",
    "View",
    "check_pattern",
    "compile_action",
    "compile_correlation",
    "compile_filter",
]
