"""The protocols that clients speak, one folder each."""
