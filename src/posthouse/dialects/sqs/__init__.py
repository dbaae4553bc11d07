"""Amazon SQS: its requests are recognised, and not answered yet."""
