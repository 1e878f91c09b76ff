// What is kept, what room there is, and the files that were delivered last.

export function storage(status, { made, size, count, clock }) {
  const line = (...cells) => made("tr", {}, ...cells.map(([label, text, kind]) =>
    made("td", { "data-label": label, class: kind }, text)));
  const kept = (what, where, bytes, room, disk) => line(["What", what], ["Where", where], ["Size", size(bytes), "number"],
    ["Room left", room === null ? "" : size(room) + (disk ? ` of ${size(disk)}` : ""), "number"]);
  const lines = [];
  for (const source of status.sources || []) {
    const { spooled_bytes, room_bytes, disk_bytes } = source.capture;
    if (spooled_bytes !== null) lines.push(kept("spool", source.name, spooled_bytes, room_bytes, disk_bytes));
    lines.push(kept("WAL kept by the slot", source.name, source.retained_bytes, source.safe_wal_bytes));
  }
  if (status.state && status.state.bytes !== null) lines.push(kept("state", "SQLite", status.state.bytes, null));
  const writers = (status.destinations || []).filter((each) => each.files);
  for (const { name, files } of writers) {
    const ratio = files.compression_ratio ? `, compressed ${files.compression_ratio.toFixed(1)} : 1` : "";
    const what = `${count(files.count)} files in ${count(files.folders)} folders${ratio}`;
    lines.push(kept(what, name, files.bytes, files.room_bytes, files.disk_bytes));
  }
  document.getElementById("kept").replaceChildren(...lines);
  document.getElementById("recent").hidden = writers.length === 0;
  document.getElementById("files").replaceChildren(...writers.flatMap((writer) => writer.files.recent.map((each) =>
    line(["Table", each.table], ["File", each.path], ["Rows", count(each.rows), "number"],
      ["Size", size(each.bytes), "number"], ["Written", clock(each.at), "number"]))));
}
