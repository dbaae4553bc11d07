"""What is done with messages as data. Each job is a function on a Spark session."""
