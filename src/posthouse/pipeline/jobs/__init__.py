"""Jobs on messages as data. Each job is a function on a Spark session."""
