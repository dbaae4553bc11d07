"""What there is, in the words of Spark Declarative Pipelines."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
URL = spark.conf.get("posthouse.url", "http://127.0.0.1:5300")
SCHEMA = "id bigint, region string, amount double"

dp.create_sink("large", "posthouse", {"url": URL or "", "queue": "large-orders", "once": "true"})


@dp.table
def orders() -> DataFrame:
    """Every order that was sent, once."""
    source = spark.readStream.format("posthouse").options(
        url=URL, queue="orders", body="json", bodySchema=SCHEMA
    )
    return source.load().select("position", "time", "message_id", "body.*")


@dp.materialized_view
def revenue() -> DataFrame:
    """Of each region."""
    return spark.read.table("orders").groupBy("region").agg(f.sum("amount").alias("amount"))


@dp.append_flow(target="large")
def large() -> DataFrame:
    return spark.readStream.table("orders").where("amount >= 100").select(
        f.concat(f.lit("order-"), "position").alias("message_id"),
        f.to_json(f.struct("id", "region", "amount")).alias("body"),
    )  # fmt: skip
