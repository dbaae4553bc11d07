"""The errors of Spark, as one sentence each."""

import pytest

from posthouse.pipeline.failures import sentence_of

UNRESOLVED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with \
name `reasn` cannot be resolved. Did you mean one of the following? [`reason`]. SQLSTATE: 42703; \
line 1 pos 0;
'Filter ('reasn = Timeout)
+- Project [position#1L]"""
SYNTAX = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'frm'. SQLSTATE: 42601 (line 1, pos 9)

== SQL ==
select * frm orders
---------^^^
"""
TASK = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 3.0: org.apache.spark.SparkNumberFormatException: \
[CAST_INVALID_INPUT] The value 'x' of the type "STRING" cannot be cast to "INT". SQLSTATE: 22018
\tat org.apache.spark.Thing.run(Thing.scala:1)"""
JAVA = """An error occurred while calling o31.parquet.
: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (UNRESOLVED, "A column, variable, or function parameter with name `reasn` cannot be"
         " resolved. Did you mean one of the following? [`reason`]. line 1 pos 0"),
        (SYNTAX, "Syntax error at or near 'frm'. (line 1, pos 9)"),
        (TASK, "The value 'x' of the type \"STRING\" cannot be cast to \"INT\"."),
        (JAVA, "No space left on device"),
        ("worker\nPosthouseError: There is no queue.\n", "There is no queue."),
        ("plain words", "plain words"),
    ],
)  # fmt: skip
def test_an_error_is_told_in_one_line_without_codes_plans_and_traces(text: str, said: str) -> None:
    assert sentence_of(Exception(text)) == said
