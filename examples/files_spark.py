"""Rebuild the tables of a `files` destination with Spark, as Parquet: each run from the newest full copy on.

    python files_spark.py POSTGRES_DSN FOLDER

All columns are strings and hold PostgreSQL's own text: cast them as you need them. The registry is told to
keep every file since the newest full copy. A table without a key is refused.
"""

import re
import sys
from functools import reduce
from itertools import groupby
from typing import Any
from urllib.parse import quote

import psycopg
import yaml
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

NEW = """
select end_lsn, file_type, file_path from cdc_registry.file_log
where table_name = %s and end_lsn > %s order by end_lsn
"""
NEEDED = """
insert into cdc_registry.consumers (consumer, table_name, last_lsn) values ('spark', %s, %s)
on conflict (consumer, table_name) do update set last_lsn = excluded.last_lsn, updated_at = now()
"""
# Nothing at all is NULL, "" is an empty string. What equals `nullValue` Spark takes for NULL: a character
# that PostgreSQL's text cannot hold.
CSV: dict[str, Any] = {"nullValue": "\0", "emptyValue": "", "multiLine": True, "lineSep": "\n"}
CSV |= {"quote": '"', "escape": '"', "header": True, "enforceSchema": False, "mode": "FAILFAST"}
CHANGE = ["_op", "_commit_lsn", "_lsn", "_seq", "_xid", "_committed_at", "_unchanged"]
NAME = '"(?:[^"]|"")+"'
ALTER = re.compile(
    rf"^alter table {NAME}\.{NAME} (?:rename column (?P<old>{NAME}) to (?P<new>{NAME})"
    rf"|drop column (?P<drop>{NAME})|alter column {NAME} type .+?"
    rf"|add column (?P<add>{NAME}) .+?(?: default +(?P<default>E?'(?:[^']|'')*'))?);\n",
    re.DOTALL | re.MULTILINE,
)


def main(dsn: str, folder: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    with psycopg.connect(dsn, autocommit=True) as registry:
        names = registry.execute(
            "select distinct table_name from cdc_registry.file_log order by 1"
        ).fetchall()
        for (name,) in names:
            files = registry.execute(NEW, (name, "0/0")).fetchall()
            copies = [place for place, (_, kind, _) in enumerate(files) if kind == "schema"]
            if not copies:
                sys.exit(f"{name}: its full copy is gone. Have it copied anew: penstock reload")
            registry.execute(NEEDED, (name, files[copies[-1] - 1][0] if copies[-1] else "0/0"))
            rows = rebuilt(spark, name, [(kind, path) for _, kind, path in files[copies[-1] :]])
            rows.write.mode("overwrite").parquet(f"{folder}/{quote(name, safe='')}")


def rebuilt(spark: SparkSession, name: str, files: list[tuple[str, str]]) -> DataFrame:
    """A table as of the last of its files, which begin with `schema.yml` and the full copy. The rows of the
    copy become lines as the changes are; a schema change is made to all lines before it."""
    (_, schema), (_, copy), *later = files
    described = yaml.safe_load(text(spark, schema))
    key: list[str] = described["metadata"]["key"]
    if not key:
        sys.exit(f"{name} has no key: this example cannot tell its rows apart. Give it a primary key.")
    rows = read(spark, [copy], [column["name"] for column in described["columns"]])
    lines = rows.select(
        F.lit("I").alias("_op"),
        F.lit("").alias("_commit_lsn"),
        F.lit(0).cast("long").alias("_seq"),
        F.array().cast("array<string>").alias("_kept"),
        "*",
    )
    for kind, group in groupby(later, lambda file: file[0]):
        paths = [path for _, path in group]
        if kind == "ddl":
            lines = reduce(altered, (text(spark, path) for path in paths), lines)
        else:
            lines = lines.unionByName(changes(spark, paths, lines.columns[4:]))
    return newest(lines, key)


def read(spark: SparkSession, paths: list[str], columns: list[str]) -> DataFrame:
    """Fails if the header has other columns."""
    return spark.read.csv(paths, StructType([StructField(name, StringType()) for name in columns]), **CSV)


def changes(spark: SparkSession, paths: list[str], columns: list[str]) -> DataFrame:
    array = F.expr("coalesce('[' || substr(_unchanged, 2, length(_unchanged) - 2) || ']', '[]')")
    kept = F.from_json(array, "array<string>", {"allowUnquotedControlChars": "true"}).alias("_kept")
    found = read(spark, paths, [*CHANGE, *columns])
    seq = F.col("_seq").cast("long").alias("_seq")
    return found.select("_op", "_commit_lsn", seq, kept, *map(column, columns))


def text(spark: SparkSession, path: str) -> str:
    return str(spark.read.text(path, wholetext=True).collect()[0][0])


def altered(lines: DataFrame, ddl: str) -> DataFrame:
    """Types are of no concern here, and keys do not change: such a table is copied anew. A statement that is
    not understood must not be passed over."""
    if any(line and not line.startswith("--") for line in ALTER.sub("", ddl).splitlines()):
        sys.exit(f"this schema change is not understood:\n{ddl}")
    for found in ALTER.finditer(ddl):
        old, new, drop, add = (name and name[1:-1].replace('""', '"') for name in found.groups()[:4])
        if old:
            lines = lines.withColumnRenamed(old, new)
            renamed = F.transform("_kept", lambda name: F.when(name == old, new).otherwise(name))  # noqa: B023
            lines = lines.withColumn("_kept", renamed)
        elif drop:
            lines = lines.drop(drop).withColumn("_kept", F.array_remove("_kept", drop))
        elif add:
            lines = lines.withColumn(add, F.lit(value(found["default"])).cast("string"))
    return lines


def value(literal: str | None) -> str | None:
    if literal is None:
        return None
    plain = literal.removeprefix("E")[1:-1].replace("''", "'")
    return plain.replace("\\\\", "\\") if literal.startswith("E") else plain


def newest(lines: DataFrame, key: list[str]) -> DataFrame:
    """Each key gets what its last line says. Where that leaves a value unchanged it is the one of the line
    `_before`: the last one with that key or, if the row had another key, with that. Each round looks twice as
    far back as the one before."""
    columns, keys = lines.columns[4:], [column(name) for name in key]
    if truncates := lines.where("_op = 'T'").select("_commit_lsn", "_seq").collect():
        lsn, seq = max(truncates)
        after = (F.col("_commit_lsn") == lsn) & (F.col("_seq") > seq)
        lines = lines.where((F.col("_commit_lsn") > lsn) | after)
    lines = lines.withColumn("_at", F.struct("_commit_lsn", "_seq", "_op", *keys))
    lines = lines.withColumn("_before", F.lag("_at").over(Window.partitionBy(*keys).orderBy("_at")))
    # A delete and an update of one place are one change that gave a row another key.
    inserted = F.when(F.col("_op") == "I", F.struct(*keys))
    pair = Window.partitionBy("_commit_lsn", "_seq", inserted).orderBy("_op")
    moved = (F.col("_op") == "U") & (F.lag("_op").over(pair) == "D")
    before = F.when(moved, F.lag("_before").over(pair)).otherwise(F.col("_before"))
    lines = lines.withColumn("_before", before).drop("_commit_lsn", "_seq").localCheckpoint()
    while True:
        kept, unknown = F.size("_kept") > 0, F.col("_before").isNull()
        some, lost = lines.agg(F.count_if(kept), F.count_if(kept & unknown)).collect()[0]
        if lost:
            sys.exit(f"rows that were changed are not there: {lost}")
        if not some:
            break
        earlier = lines.select(F.col("_at").alias("_there"), F.struct("*").alias("_b"))
        found = lines.join(earlier, (F.col("_before") == F.col("_there")) & kept, "left")
        lines = found.select(
            *(
                F.when(F.array_contains("_kept", name), column("_b", name))
                .otherwise(column(name))
                .alias(name)
                for name in columns
            ),
            "_op",
            "_at",
            F.when(kept, F.array_intersect("_kept", "_b._kept")).otherwise(F.col("_kept")).alias("_kept"),
            F.when(kept, F.col("_b._before")).otherwise(F.col("_before")).alias("_before"),
        ).localCheckpoint()
    last = F.max("_at").over(Window.partitionBy(*keys))
    lines = lines.withColumn("_last", last).where("_at = _last and _op <> 'D'")
    return lines.select(*map(column, columns))


def column(*path: str) -> Any:
    return F.col(".".join("`" + name.replace("`", "``") + "`" for name in path))


if __name__ == "__main__":
    main(*sys.argv[1:])
