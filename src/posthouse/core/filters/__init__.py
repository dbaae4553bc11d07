"""Filters of messages: SQL and correlation filters, SQL actions, and wildcard patterns."""
