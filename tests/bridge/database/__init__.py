"""The database side of the bridge, on SQLite, PostgreSQL and MariaDB."""
