"""Spark's own daemon, which has what its workers import before it forks them.

Spark asks a new worker whenever something is planned, and each would import all of it again.
"""

import pyspark.sql.worker.commit_data_source_write
import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.plan_data_source_read
import pyspark.sql.worker.write_into_data_source
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
