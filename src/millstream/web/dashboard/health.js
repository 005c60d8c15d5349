// Health: every check of the server, the worst first, and what to do about it.
import { html } from "../vendor/preact.js";
import { useAnswer, usePulse } from "./live.js";
import { Answer, count, format } from "./parts.js";
import { Space } from "./space.js";
import { askHealth, onStore, refusal, session } from "./session.js";

export const KINDS = { healthy: "good", warning: "warn", critical: "bad" };
const RANK = { critical: 0, warning: 1, healthy: 2 };

/** What each check looks at; what to do about it comes from the server. */
const TITLES = {
  store: "The store takes writes",
  upkeep: "Background work",
  scrub: "All rows are as they were written",
  fold: "Recent commits are moved to their places",
  disk: "Free space on the disk",
  event_loop: "The server answers in time",
  queues: "Messages are worked on in time",
  rooms: "Messages of rooms are delivered",
  instances: "All servers of the store give signs of life",
  cluster: "The cluster answers this node",
  processes: "All server processes serve",
  backup: "Backups are made in time",
};

const FOLDED = "A commit is first written as one row of its own. In the background the store folds it: moves its changes into "
  + "the rows of logs and queues. Nothing is lost or slow to read meanwhile.";

/** Words of a check that need an explanation. */
const EXPLAINED = { fold: FOLDED };

/** What the facts of a store mean whose names do not say so. */
const MEANINGS = {
  sequence: "the number of the newest commit",
  unfolded_commits: "commits whose changes are not yet moved into the rows of logs and queues",
  unfolded_bytes: "the size of these changes",
  unfolded_entities: "logs, queues, cursors and the like that these changes are about",
  fold_slices: "how often such changes were moved since the server started",
  commits: "since the server started",
  operations: "since the server started; a commit may hold many",
  entities_cached: "logs, queues, cursors and the like in memory",
  condition: "whether the store takes writes",
  free_bytes: "free pages of the file",
  backup_age_s: "since the last backup that this server made, or that a client downloaded",
  backup_failures: "backups of this server that failed, since it started",
  returned_bytes: "free pages that this process has returned to the disk",
};

export function HealthBadge() {
  const { pulse } = usePulse();
  if (!pulse) return null;
  return html`<a class="badge dot ${KINDS[pulse.health]}" href="#/health">${pulse.health}</a>`;
}

export function HealthPage() {
  const health = useAnswer(askHealth);
  const stats = useAnswer(() => session.ms.get("/stats"));
  const why = refusal(onStore("read"));
  return html`
    <h1>Health</h1>
    <${Answer} of=${health}>${(found) => html`
      <p class=verdict><span class="badge dot ${KINDS[found.status]}">${found.status}</span></p>
      ${why ? html`<p class=notice>${why} The single checks are not shown without it.</p>`
        : html`<ul class=checks>${ordered(found.checks ?? []).map((one) => html`<${Check} key=${one.name} of=${one} />`)}</ul>`}`}<//>
    ${!why && html`<${Answer} of=${stats}>${({ space, ...facts }) => html`
      ${space && html`<${Space} of=${space} />`}<h2>The store</h2><${Facts} of=${facts} />`}<//>`}`;
}

const ordered = (checks) => [...checks].sort((a, b) => RANK[a.status] - RANK[b.status]);

function Check({ of }) {
  const title = TITLES[of.name] ?? of.name.replaceAll("_", " ");
  return html`<li class="card check ${KINDS[of.status]}">
    <div class=row><h3>${title}</h3><span class=spread></span><span class="badge dot ${KINDS[of.status]}">${of.status}</span></div>
    ${of.detail && html`<p>${of.detail}</p>`}
    ${EXPLAINED[of.name] && html`<p class="soft small">${EXPLAINED[of.name]}</p>`}
    ${of.advice && html`<p class=advice><b>What to do.</b> ${of.advice}</p>`}
  </li>`;
}

function Facts({ of }) {
  const told = (name, value) => {
    if (value === null || value === "") return "–";
    if (Array.isArray(value)) return value.join("; ") || "none";
    if (typeof value === "number") return measured(name, value);
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  };
  return html`<div class="card scroll"><table class=spec><tbody>${Object.entries(of).map(([name, value]) => html`
    <tr key=${name}><th scope=row>${label(name)}</th><td class=mono>${told(name, value)}
      ${MEANINGS[name] && html` <span class="soft small meaning">${MEANINGS[name]}</span>`}</td></tr>`)}</tbody></table></div>`;
}

const label = (name) => name.replace(/_s$/, "").replace(/bytes$/, "size").replaceAll("_", " ");

/** A number with the unit that the end of its name tells. */
function measured(name, value) {
  if (/bytes|size/.test(name)) return format(value, "bytes");
  if (name.endsWith("_s")) return format(value, "s");
  if (name.endsWith("_ms")) return format(value, "ms");
  return /progress|share/.test(name) ? `${format(value * 100)} %` : count(value);
}
