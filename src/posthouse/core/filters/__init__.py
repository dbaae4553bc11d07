"""Which messages go where: SQL and correlation filters, SQL actions, and wildcard patterns."""
