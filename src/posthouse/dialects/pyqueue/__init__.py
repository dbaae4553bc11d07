"""PyQueue's protocol: tasks pushed and pulled in frames of text, and its API over HTTP."""
