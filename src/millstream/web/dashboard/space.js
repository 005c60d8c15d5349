// Where the bytes of a store are, and what makes each part smaller.
import { html } from "../vendor/preact.js";
import { format } from "./parts.js";

/** Each part of a store: its field, its name, and its meaning. */
const PARTS = [
  ["live_bytes", "live records", "what readers can read; retention or truncation deletes records"],
  ["held_bytes", "held records", "deleted, but a fork, a queue or a copy still needs them, or they go next"],
  ["application_bytes", "tables of the application", "in the same file"],
  ["other_bytes", "everything else", "keys, indexes, states of queues and rooms, and gaps within pages"],
  ["free_bytes", "free pages", "later records fill them; the background returns many of them to the disk"],
  ["wal_bytes", "write-ahead log", "the newest commits, in a file of its own"],
];

export function Space({ of }) {
  const parts = PARTS.filter(([field]) => of[field] !== undefined && of[field] !== null);
  const most = Math.max(1, ...parts.map(([field]) => of[field]));
  return html`<section aria-label=Space><h2>Space</h2>
    <div class="card scroll"><table class="folds dense">
      <thead><tr><th>part</th><th class=number>size</th><th></th><th>meaning</th></tr></thead>
      <tbody>${parts.map(([field, name, meaning]) => html`<tr key=${field}>
        <td>${name}</td><td class=number data-label=size>${format(of[field], "bytes")}</td>
        <td data-label=share><meter min=0 max=${most} value=${of[field]} aria-label=${`Size of ${name}`}></meter></td>
        <td class="soft small" data-label=meaning>${meaning}</td></tr>`)}</tbody></table></div>
    <p class="soft small">Of the live records, ${of.logs_left_off ? "at least " : ""}${format(of.waiting_bytes, "bytes")} wait for
      a cursor or a queue. Counted ${of.age_s ? `${format(of.age_s, "s")} ago` : "now"}.</p></section>`;
}
