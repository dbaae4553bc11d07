"""The engine: the single writer that joins the core, the journal and the clock."""
