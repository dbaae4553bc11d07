"""The Python client: one API for queues, whoever keeps them. `import posthouse` has all of it."""
