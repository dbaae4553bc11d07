"""Amazon SQS: both of its protocols over HTTP, for every SDK of AWS's."""
