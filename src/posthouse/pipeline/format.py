"""The data source `format("posthouse")` for Spark."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from posthouse.pipeline.options import READING, WRITING, Options
from posthouse.pipeline.sink import StreamWriter, Writer, target
from posthouse.pipeline.source import Reader, StreamReader, wanted
from posthouse.pipeline.wire import PosthouseError


class PosthouseSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "posthouse"

    def schema(self) -> str:
        return Options(self.options, READING).ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options(self.options, READING)
        asked = wanted(options, schema)
        return Reader(
            asked, options.range(asked.broker, **asked.part), options.number("partitions", 0, 0),
            pushes=options.one_of("pushdown", ("true", "false")) == "true",
        )  # fmt: skip

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = Options(self.options, READING)
        asked = wanted(options, schema)
        return StreamReader(
            asked, options.range(asked.broker, **asked.part), options.number("partitions", 0, 0),
            options.number("maxRowsPerBatch", 0, 0), options.text("reader"),
        )  # fmt: skip

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise PosthouseError('What is in a queue cannot be overwritten; use mode("append").')
        return Writer(target(Options(self.options, WRITING), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        if overwrite:
            raise PosthouseError(
                'What is in a queue cannot be overwritten; use outputMode("append").'
            )
        return StreamWriter(target(Options(self.options, WRITING), schema))
