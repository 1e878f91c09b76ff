// Keeps one table in memory, equal to the source: a snapshot, then every change. Prints all rows as one line of
// JSON whenever it has caught up.
//
//   npm install
//   NATS_USER=app NATS_PASSWORD=secret node consumer.mjs ws://localhost:8080 users
//
// A browser needs the same lines, without `ws`. For a destination with `encoding: json`, decode is JSON.parse.
import { Decoder } from "@msgpack/msgpack";
import { DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { createInbox, wsconnect } from "@nats-io/nats-core";
import WebSocket from "ws";

globalThis.WebSocket ??= WebSocket; // Node has its own from version 22 on
const [server, table] = process.argv.slice(2);
const connection = await wsconnect({
  servers: server,
  user: process.env.NATS_USER,
  pass: process.env.NATS_PASSWORD,
});
const streams = jetstream(connection);
const manager = await jetstreamManager(connection);
const decoder = new Decoder({ useBigInt64: true }); // integers beyond 2^53 stay exact
const decode = (message) => decoder.decode(message.data);

const lastSequence = async (stream) => (await manager.streams.info(stream)).state.last_seq;

// The messages of a stream after a sequence, in order; the client makes its consumer anew when it has to.
async function* messages(stream, subject, after) {
  const consumer = await streams.consumers.get(stream, {
    filter_subjects: [subject],
    deliver_policy: DeliverPolicy.StartSequence,
    opt_start_seq: after + 1,
  });
  yield* await consumer.consume();
}

async function loadSnapshot(rows, keyOf) {
  const before = await lastSequence("INIT");
  // Asked again under the same id, a pipeline that was restarted meanwhile promises another one; any will do.
  const request = JSON.stringify({ request_id: createInbox() });
  const promised = new Set();
  const ask = async () => {
    const answer = decode(await connection.request(`snapshot.request.${table}`, request, { timeout: 10_000 }));
    if (answer.error) throw new Error(answer.error);
    promised.add(answer.snapshot_id);
  };
  await ask();
  const asking = setInterval(() => ask().catch(() => {}), 30_000);
  let info;
  for await (const message of messages("INIT", `init.meta.${table}`, before)) {
    info = decode(message);
    if (promised.has(info.snapshot_id)) break;
  }
  clearInterval(asking);
  const key = keyOf(info);
  let chunks = 0;
  const subject = `init.snap.${table}.${info.snapshot_id}.*`;
  while (chunks < info.batch_count)
    for await (const message of messages("INIT", subject, before)) {
      for (const row of decode(message).data) rows.set(key(row), row);
      if (++chunks === info.batch_count) break;
    }
  return { info, key };
}

// Which row is meant: by the columns that are flagged as its key.
const keyOf = (info) => (row) =>
  JSON.stringify(info.columns.filter((column) => column.key).map((column) => String(row[column.name])));

function apply(rows, key, change) {
  const before = key({ ...change.data, ...change.old });
  switch (change.operation) {
    case "INSERT":
      rows.set(key(change.data), change.data);
      break;
    case "UPDATE": {
      const row = { ...rows.get(before), ...change.data }; // what is not sent keeps its value
      rows.delete(before);
      rows.set(key(row), row);
      break;
    }
    case "DELETE":
      rows.delete(before);
      break;
    case "TRUNCATE":
      rows.clear();
  }
}

const printable = (_, value) => (typeof value === "bigint" ? value.toString() : value);

for (;;) {
  const rows = new Map();
  // First the place in the stream of changes, then the snapshot: nothing falls between them.
  const after = await lastSequence("CDC");
  const { info, key } = await loadSnapshot(rows, keyOf);
  console.log(JSON.stringify([...rows.values()], printable));
  for await (const message of messages("CDC", `cdc.${table}.*`, after)) {
    const change = decode(message);
    // Other columns, or changes that nobody saw: begin again.
    if (change.operation === "RESET") break;
    if (change.operation === "SCHEMA" && change.version > info.version) break;
    // What committed up to `lsn` is in the snapshot. Of what committed later some may be, too: to set a row
    // again to what it is does no harm here. Whoever counts changes compares transactions (the guide says how).
    if (change.commit_lsn > info.lsn) apply(rows, key, change);
    if (message.info.pending === 0) console.log(JSON.stringify([...rows.values()], printable));
  }
}
