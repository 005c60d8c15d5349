// Replicas and forks: whose each log is, how far its copy has come, and which logs begin as another one.
import { html, useState } from "../vendor/preact.js";
import { PAGE, firstOf } from "./listing.js";
import { useAnswer } from "./live.js";
import { Act, Ago, Answer, Dialog, Outcome, Search, count, plural, useTask } from "./parts.js";
import { onLog, path, refusal, session } from "./session.js";

export function Replicas() {
  const [wanted, setWanted] = useState("");
  const [shown, setShown] = useState(PAGE);
  const [owned, setOwned] = useState(null); // a copy that is taken over leaves the list, not its dialog
  const copies = useAnswer(() => firstOf("/replica/logs", "copies", shown).then(copiesOnly), [shown]);
  const forks = useAnswer(() => firstOf("/forks", "forks", shown), [shown]);
  const more = ({ after }) => after && html`<button type=button onClick=${() => setShown(shown + PAGE)}>More logs</button>`;
  return html`
    <div class=row><h1>Replicas and forks</h1><span class=spread></span>
      <${Search} label="Find a log" value=${wanted} onInput=${setWanted} /></div>
    <h2>Copies of logs of other stores</h2>
    ${owned && html`<${OwnerDialog} log=${owned.name} copy=${owned} onClose=${() => { setOwned(null); copies.reload(); }} />`}
    <${Answer} of=${copies}>${(all) => html`<${CopyTable} onOwner=${setOwned} of=${all.found.filter((one) => one.name.includes(wanted))} />${more(all)}`}<//>
    <h2>Forks</h2>
    <${Answer} of=${forks}>${(all) => html`<${ForkTable} of=${all.found.filter((one) => one.name.includes(wanted))}
      onChange=${() => { forks.reload(); copies.reload(); }} />${more(all)}`}<//>`;
}

/** The logs of which another store is the owner; the logs of this store are no copies. */
const copiesOnly = (all) => ({ ...all, found: all.found.filter((one) => !one.is_own) });

function CopyTable({ of, onOwner }) {
  const why = refusal({ noun: "replica", action: "read", name: null });
  if (!of.length) return html`<p class=soft>${why || "There are none: every log here belongs to this store."} <code>millstream sync</code>${" "}
    copies logs between stores.</p>`;
  return html`<div class="card scroll"><table class=folds>
    <thead><tr><th>log</th><th class=number>records</th><th class=number>end</th><th>owner</th><th class=number>owner changed</th><th></th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${one.name}>
      <td><a href=${`#${path("logs", one.name)}`}>${one.name}</a></td>
      <td class=number data-label=records>${count(one.end_offset - one.start_offset)}</td>
      <td class=number data-label=end>${count(one.end_offset)}</td>
      <td class=mono data-label=owner>${one.owner}</td>
      <td class=number data-label="owner changed">${one.epoch ? plural(one.epoch, "time") : "never"}</td>
      <td class=acts><button type=button class=quiet onClick=${() => onOwner(one)}>Owner…</button></td></tr>`)}</tbody></table></div>`;
}

function OwnerDialog({ log, copy, onClose }) {
  const owner = useAnswer(() => session.ms.get(path("logs", log, "owner")), [log], { live: false });
  const task = useTask();
  const take = () => task.run(async () => {
    await session.ms.put(path("logs", log, "owner"), { store: null });
    owner.reload();
    return "This store appends from now on. The owner so far learns of it by a sync.";
  });
  return html`<${Dialog} title=${`The owner of ${log}`} onClose=${onClose}>
    <${Answer} of=${owner}>${(found) => html`<p>${found.here ? "This store may append to it."
      : html`The store <b class=mono>${found.store}</b> may append to it; here is a copy.`}
      ${" "}The owner has changed ${plural(found.epoch, "time")}.</p>
      <p class="soft small">Running hash at offset ${count(copy.end_offset)}: <code>${copy.end_hash}</code>. It is a SHA-256 of all
        records so far. A copy with the same hash at this offset has the same records.</p>
      <${Outcome} task=${task} />
      <div class=actions><button type=button onClick=${onClose}>Close</button>
        ${!found.here && html`<${Act} kind=danger need=${onLog("admin", log)} disabled=${task.busy} onClick=${take}>Take over<//>`}</div>`}<//>
  <//>`;
}

function ForkTable({ of, onChange }) {
  const [merging, setMerging] = useState(null);
  if (!of.length) return html`<p class=soft>There are no forks.</p>`;
  return html`<div class="card scroll"><table class=folds>
    <thead><tr><th>fork</th><th>of</th><th class=number>end</th><th>made</th><th></th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${one.name}>
      <td><a href=${`#${path("logs", one.name)}`}>${one.name}</a></td>
      <td data-label=of>${one.parent === null ? html`<span class=soft>not to be seen</span>`
        : html`<a href=${`#${path("logs", one.parent)}`}>${one.parent}</a>`}</td>
      <td class=number data-label=end>${count(one.end_offset)}</td>
      <td data-label=made><${Ago} at=${one.created} /></td>
      <td class=acts><${Act} need=${onLog("write", one.name)} onClick=${() => setMerging(one)}>Merge…<//></td></tr>`)}</tbody></table></div>
    ${merging && html`<${MergeDialog} fork=${merging} onClose=${() => { setMerging(null); onChange(); }} />`}`;
}

function MergeDialog({ fork, onClose }) {
  const [how, setHow] = useState("refuse");
  const task = useTask();
  const merge = () => task.run(async () => {
    const found = await session.ms.post(path("logs", fork.name, "merge"), { on_fork: how });
    const aside = found.set_aside ? ` What was its own is now in ${found.set_aside}.` : "";
    return `${found.parent} has taken over ${plural(found.adopted, "record")} and ends at ${count(found.end)}.${aside}`;
  });
  return html`<${Dialog} title="Merge the fork" onClose=${onClose}>
    <p>The records of <b>${fork.name}</b> are brought into <b>${fork.parent ?? "its parent"}</b>.</p>
    ${task.done === null && html`<label class=field>If both have gone on
      <select value=${how} onChange=${(event) => setHow(event.target.value)}>
        <option value=refuse>refuse</option><option value=rebase>append the fork's records again</option>
        <option value=longest>the longer one counts</option></select></label>`}
    <${Outcome} task=${task} />
    <div class=actions><button type=button onClick=${onClose}>${task.done === null ? "Cancel" : "Close"}</button>
      ${task.done === null && html`<${Act} kind=primary need=${onLog("write", fork.name)} disabled=${task.busy} onClick=${merge}>Merge<//>`}</div>
  <//>`;
}
