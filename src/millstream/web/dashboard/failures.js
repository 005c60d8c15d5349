// Failed messages by reason: how many there are of each, and a retry of all that failed for the same reason.
import { html, useState } from "../vendor/preact.js";
import { useAnswer } from "./live.js";
import { Act, Ago, Dialog, Problem, count, plural } from "./parts.js";
import { Rehearsed } from "./rehearsed.js";
import { onQueue, path, session } from "./session.js";

const NO_REASON = "no reason was given";
const REQUESTS_MAX = 100; // of one retry: each scans 10,000 messages

export const reasonText = (reason) => reason || NO_REASON;

/** The groups of a queue's failed messages; `total` is how many failed messages there are. */
export function Failures({ queue, total, onChange }) {
  const [retried, setRetried] = useState(null);
  const found = useAnswer(() => session.ms.get(path("queues", queue, "failures")), [queue, total], { live: false });
  const need = onQueue("admin", queue);
  // The dialog stays until it is closed, also when its group was the last one.
  return html`
    ${retried && html`<${RetryGroup} queue=${queue} group=${retried} need=${need}
      onClose=${() => { setRetried(null); found.reload(); onChange(); }} />`}
    ${total > 0 && (found.data ? html`<${Groups} of=${found.data} need=${need} onRetry=${setRetried} />`
      : html`<${Problem} error=${found.error} />`)}`;
}

function Groups({ of: { groups, scanned, next }, need, onRetry }) {
  return html`<section aria-label="Failed messages by reason"><h3>By reason</h3>
    <div class="card scroll"><table class="folds groups">
      <thead><tr><th>reason</th><th class=number>messages</th><th>first failed</th><th>last failed</th><th></th></tr></thead>
      <tbody>${groups.map((one) => html`<tr key=${one.reason}>
        <td class=reason data-label=reason><span>${reasonText(one.reason)}</span></td>
        <td class=number data-label=messages>${count(one.count)}</td>
        <td data-label="first failed">${one.first && html`<${Ago} at=${one.first} />`}</td>
        <td data-label="last failed">${one.last && html`<${Ago} at=${one.last} />`}</td>
        <td class=acts><${Act} need=${need} onClick=${() => onRetry(one)}>Retry group…<//></td></tr>`)}</tbody></table></div>
    ${next && html`<p class="soft small">Of the first ${plural(scanned, "failed message")}; there are more.</p>`}</section>`;
}

/** Retry all messages of a group, request by request. */
async function retry(queue, reason, dry_run) {
  let [total, after] = [0, null];
  for (let request = 0; request < REQUESTS_MAX; request += 1) {
    const answer = await session.ms.post(path("queues", queue, "failures", "retry"), { reason, after, dry_run });
    total += answer.count;
    after = answer.next;
    if (!after) break;
  }
  const verb = dry_run ? "would be" : total === 1 ? "is" : "are";
  return `${plural(total, "message")} ${verb} available again.`;
}

function RetryGroup({ queue, group, need, onClose }) {
  return html`<${Dialog} title="Retry the group" onClose=${onClose}>
    <p>All messages that failed with this reason are tried again, under new claim ids and with no attempts counted:</p>
    <pre class=trace tabindex=0>${reasonText(group.reason)}</pre>
    <${Rehearsed} check=${() => retry(queue, group.reason, true)} doIt=${() => retry(queue, group.reason, false)}
      verb="Retry them" need=${need} onClose=${onClose} />
  <//>`;
}
