"""Which messages go where: wildcard patterns."""

from posthouse.core.filters.patterns import Style, Trie, check_pattern
from posthouse.core.filters.problems import SyntaxProblem

__all__ = ["Style", "SyntaxProblem", "Trie", "check_pattern"]
