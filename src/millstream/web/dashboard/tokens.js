// Tokens: which there are, a new one, whose text is shown once, and an end to one.
import { html, useState } from "../vendor/preact.js";
import { PAGE, SEARCHED_MAX, firstOf } from "./listing.js";
import { useAnswer } from "./live.js";
import { Ago, Answer, Confirm, Dialog, Problem, Search, useTask, when } from "./parts.js";
import { path, session, who } from "./session.js";

const DAY_S = 86_400;
const NOUNS = ["log", "queue", "job", "room", "replica", "store", "*"];
const EVERYTHING = "admin"; // a permission of one word: all rights, also to manage tokens

export function Tokens() {
  const [wanted, setWanted] = useState("");
  const [shown, setShown] = useState(PAGE);
  const [making, setMaking] = useState(false);
  const [revoking, setRevoking] = useState(null);
  const may = session.access.may_manage_tokens;
  const limit = wanted ? Math.max(shown, SEARCHED_MAX) : shown;
  const found = useAnswer((isWanted) => (may ? firstOf("/tokens", "tokens", limit, isWanted) : Promise.resolve({ found: [] })), [limit], { live: false });
  const over = () => { setMaking(false); setRevoking(null); found.reload(); };
  return html`
    <div class=row><h1>Tokens</h1><span class=spread></span>
      <${Search} label="Find a token" value=${wanted} onInput=${setWanted} />
      <button type=button class=primary disabled=${!may} title=${may ? null : "This needs the permission store:admin."}
        onClick=${() => setMaking(true)}>New token…</button></div>
    ${may ? html`<${Answer} of=${found}>${(all) => {
        const fits = all.found.filter((one) => one.name.includes(wanted));
        return html`<${TokenTable} onRevoke=${setRevoking} of=${fits.slice(0, shown)} />
          ${(all.after || fits.length > shown) && html`<button type=button onClick=${() => setShown(shown + PAGE)}>More tokens</button>`}`;
      }}<//>`
      : html`<p class="notice readonly">Tokens are managed with a token that names the permission <code>store:admin</code> itself,
          which ${who()} does not have; or with <code>millstream token</code> on the machine that has the store's file.</p>`}
    ${making && html`<${NewToken} onClose=${over} />`}
    ${revoking && html`<${Revoke} token=${revoking} onClose=${over} />`}`;
}

function TokenTable({ of, onRevoke }) {
  if (!of.length) return html`<p class=soft>There is no such token.</p>`;
  return html`<div class="card scroll"><table class=folds>
    <thead><tr><th>token</th><th>id</th><th>may</th><th>created</th><th>ends</th><th></th></tr></thead>
    <tbody>${of.map((one) => html`<tr key=${one.id}>
      <td data-label=token>${one.name}${one.name === session.access.name && html` <span class="badge info">this one</span>`}</td>
      <td class="mono soft whole" data-label=id>${one.id}</td>
      <td data-label=may><ul class=chips>${one.permissions.map((text) => html`<li key=${text} class=mono>${text}</li>`)}</ul></td>
      <td class=whole data-label=created><${Ago} at=${one.created} /></td>
      <td class=whole data-label=ends>${one.expired ? html`<span class="badge warn">expired</span>` : one.expires ? when(one.expires) : "never"}</td>
      <td class=acts><button type=button class=danger onClick=${() => onRevoke(one)}>Revoke…</button></td></tr>`)}</tbody></table></div>`;
}

function Revoke({ token, onClose }) {
  const doIt = async () => {
    await session.ms.delete(path("tokens", token.id));
    return "It is refused from now on, within a second; its open connections are closed within two.";
  };
  const isOwn = token.name === session.access.name;
  return html`<${Confirm} title="Revoke the token" name=${token.name} verb=Revoke onClose=${onClose} doIt=${doIt}>
    <p>Clients that use it are shut out.${isOwn ? " It is the token that you are signed in with." : ""}</p><//>`;
}

function NewToken({ onClose }) {
  const [name, setName] = useState("");
  const [days, setDays] = useState("90");
  const [isAdmin, setIsAdmin] = useState(false);
  const [rights, setRights] = useState([{ noun: "log", action: "read", pattern: "*" }]);
  const task = useTask();
  const change = (i, field) => (event) => setRights(rights.map((one, at) => (at === i ? fitting({ ...one, [field]: event.target.value }) : one)));
  const make = (event) => {
    event.preventDefault();
    task.run(() => session.ms.post("/tokens", { name, permissions: isAdmin ? [EVERYTHING] : rights.map(permission), expires: days ? Number(days) * DAY_S : null }));
  };
  if (task.done) return html`<${Made} token=${task.done} onClose=${onClose} />`;
  return html`<${Dialog} title="New token" onClose=${onClose}>
    <form onSubmit=${make}>
      <label class=field>Name<input value=${name} onInput=${(event) => setName(event.target.value)} required autofocus autocomplete=off
        spellcheck=${false} /></label>
      <label class=row><input type=checkbox checked=${isAdmin} onChange=${(event) => setIsAdmin(event.target.checked)} /> An
        administrator: it may do everything, also manage tokens</label>
      <fieldset disabled=${isAdmin}><legend>It may</legend>${rights.map((one, i) => html`<div class="row right" key=${i}>
        <select value=${one.action} onChange=${change(i, "action")} aria-label=Action>${actionsOf(one).map((action) => html`<option key=${action}>${action}</option>`)}</select>
        <select value=${one.noun} onChange=${change(i, "noun")} aria-label="Kind of thing">${NOUNS.map((noun) => html`<option key=${noun}>${noun}</option>`)}</select>
        <input class=mono value=${one.pattern} onInput=${change(i, "pattern")} aria-label="Pattern of names" disabled=${one.noun === "store"} spellcheck=${false} />
        <button type=button class=quiet aria-label="Remove this permission" disabled=${rights.length === 1}
          onClick=${() => setRights(rights.filter((_, at) => at !== i))}>✕</button></div>`)}
        <button type=button onClick=${() => setRights([...rights, { noun: "queue", action: "write", pattern: "*" }])}>And also…</button>
      </fieldset>
      <label class=field>It ends after<select value=${days} onChange=${(event) => setDays(event.target.value)}>
        <option value=1>a day</option><option value=7>a week</option><option value=30>30 days</option><option value=90>90 days</option>
        <option value=365>a year</option><option value="">never</option></select></label>
      <${Problem} error=${task.error} />
      <div class=actions><button type=button onClick=${onClose}>Cancel</button>
        <button class=primary disabled=${task.busy}>Create</button></div>
    </form><//>`;
}

/** To put, and neither to read nor to claim, is a right on queues alone. */
function actionsOf({ noun }) {
  return noun === "queue" ? ["read", "put", "write", "admin"] : ["read", "write", "admin"];
}

function fitting(right) {
  return actionsOf(right).includes(right.action) ? right : { ...right, action: "write" };
}

function permission({ noun, action, pattern }) {
  return noun === "store" || pattern === "*" || pattern === "" ? `${noun}:${action}` : `${noun}:${action}:${pattern}`;
}

function Made({ token, onClose }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(token.token);
      setCopied(true);
    } catch {
      document.getSelection().selectAllChildren(document.querySelector(".secret")); // copied by hand then
    }
  };
  return html`<${Dialog} title=${`The token “${token.name}”`} onClose=${onClose}>
    <p>Keep it: it is shown only this once, and the store has no copy.</p>
    <pre class=secret tabindex=0 aria-label="The token">${token.token}</pre>
    <div class=actions><button type=button onClick=${copy}>${copied ? "Copied" : "Copy"}</button>
      <button type=button class=primary onClick=${onClose}>I have kept it</button></div><//>`;
}
