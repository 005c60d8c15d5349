// A log with partitions: its sums, and how each partition stands. A partition is a log of its own.
import { html } from "../vendor/preact.js";
import { useAnswer } from "./live.js";
import { Ago, Answer, Figures, count, format } from "./parts.js";
import { path, session } from "./session.js";

const FORM = /^(.+)-partition-(0|[1-9][0-9]{0,3})$/s;

/** The log and the number of a partition that is named so; null for other names. */
export function partitionOf(name) {
  const found = FORM.exec(name);
  return found && { whole: found[1], number: Number(found[2]) };
}

/** The way back from the page of a log: of a partition, to the log that has it. */
export function Crumb({ name }) {
  const part = partitionOf(name);
  return html`<p class=crumb><a href="#/logs">Logs</a>
    ${part && html` › <a href=${`#${path("logs", part.whole)}`}>${part.whole}</a>`}</p>`;
}

/** What is shown of a log with partitions, instead of records. */
export function Partitions({ log }) {
  const parts = useAnswer(() => session.ms.get(path("logs", log.name, "partitions")), [log.name]);
  return html`<${Figures} of=${[
      ["records", count(log.end_offset - log.start_offset)],
      ["size", format(log.bytes, "bytes")],
      ["partitions", count(log.partitions)],
    ]} />
    <section aria-label=Partitions><h2>Partitions</h2>
      <p class="soft small">Records are spread by their keys. Each partition is a log of its own: its page has its records.</p>
      <${Answer} of=${parts}>${(found) => html`<${PartitionTable} of=${found} />`}<//></section>`;
}

function PartitionTable({ of }) {
  const most = Math.max(1, ...of.map(records));
  return html`<div class="card scroll"><table class="folds dense">
    <thead><tr><th>partition</th><th class=number>records</th><th></th><th class=number>first offset</th>
      <th class=number>next offset</th><th class=number>size</th><th>last record</th></tr></thead>
    <tbody>${of.map((one, number) => html`<tr key=${one.name}>
      <td><a href=${`#${path("logs", one.name)}`} title=${one.name}>partition ${number}</a></td>
      <td class=number data-label=records>${count(records(one))}</td>
      <td data-label=share><meter min=0 max=${most} value=${records(one)} aria-label=${`Records of partition ${number}`}></meter></td>
      <td class=number data-label="first offset">${count(one.start_offset)}</td>
      <td class=number data-label="next offset">${count(one.end_offset)}</td>
      <td class=number data-label=size>${format(one.bytes, "bytes")}</td>
      <td data-label="last record">${records(one) ? html`<${Ago} at=${one.timestamp} />` : "none"}</td></tr>`)}</tbody></table></div>`;
}

const records = (one) => one.end_offset - one.start_offset;
