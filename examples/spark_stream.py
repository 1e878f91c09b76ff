"""Follow one table of a PostgreSQL database on the terminal: python spark_stream.py shop.yaml public.users"""

import sys

from penstock.spark.session import session

config, table = sys.argv[1:]
users = session().readStream.format("postgres_cdc").option("config", config).option("table", table).load()
query = users.drop("_lsn", "_seq", "_xid").writeStream.format("console").option("truncate", False)
query.option("checkpointLocation", f".penstock/checkpoints/{table}").start().awaitTermination()
