// The dashboard: signing in, the frame around every page, and which page is shown.
//
// A page is named by the part of the address behind “#”: `#/queues/mail?tab=failed`. So every view can
// be linked to, and the browser's Back works.
import { html, render, useEffect, useState } from "../vendor/preact.js";
import { follow, leave, usePulse } from "./live.js";
import { Overview } from "./overview.js";
import { LogPage, Logs } from "./logs.js";
import { QueuePage, Queues } from "./queues.js";
import { Jobs } from "./jobs.js";
import { JobPage } from "./job.js";
import { RoomPage, Rooms } from "./rooms.js";
import { Replicas } from "./replicas.js";
import { Clients } from "./clients.js";
import { Cluster } from "./cluster.js";
import { HealthPage, HealthBadge } from "./health.js";
import { Tokens } from "./tokens.js";
import { LinkBar, Problem } from "./parts.js";
import { hasToken, session, signIn, signInAgain, signOut } from "./session.js";

const PAGES = [
  { name: "", title: "Overview", key: "o", page: Overview },
  { name: "logs", title: "Logs", key: "l", page: Logs, one: LogPage },
  { name: "queues", title: "Queues", key: "q", page: Queues, one: QueuePage },
  { name: "jobs", title: "Jobs", key: "j", page: Jobs, one: JobPage },
  { name: "rooms", title: "Rooms", key: "r", page: Rooms, one: RoomPage },
  { name: "replicas", title: "Replicas", key: "c", page: Replicas },
  { name: "clients", title: "Clients", key: "w", page: Clients },
  { name: "cluster", title: "Cluster", key: "n", page: Cluster },
  { name: "health", title: "Health", key: "h", page: HealthPage },
  { name: "tokens", title: "Tokens", key: "t", page: Tokens },
];

/** Where the address points: a page, the name of one thing, and what follows the question mark. */
function place() {
  const [where, asked = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", name = ""] = where.split("/").map(safelyDecoded);
  return { page, name, asked: Object.fromEntries(new URLSearchParams(asked)) };
}

function safelyDecoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function App() {
  const [state, setState] = useState("coming"); // coming, out, in
  const [error, setError] = useState(null);
  const out = (why = null) => { leave(); signOut(); setError(why); setState("out"); };
  const enter = async (coming) => {
    try {
      await coming();
      follow(out);
      setError(null);
      setState("in");
    } catch (found) {
      if (hasToken() && found.status === 401) signOut();
      setError(found.status === 401 && state === "coming" ? null : found);
      setState("out");
    }
  };
  useEffect(() => { enter(signInAgain); }, []);
  if (state === "coming") return html`<p class=soft role=status>Loading…</p>`;
  if (state === "out") return html`<${SignIn} error=${error} onToken=${(token) => enter(() => signIn(token))} />`;
  return html`<${Frame} onOut=${() => out()} />`;
}

function SignIn({ error, onToken }) {
  const [token, setToken] = useState("");
  const submit = (event) => {
    event.preventDefault();
    onToken(token.trim());
    setToken("");
  };
  return html`<main id=main class=signin tabindex=-1>
    <form class=card onSubmit=${submit}>
      <div class=row><h1>Millstream</h1><span class=spread></span><${ThemeButton} /></div>
      <p class=soft>This server lets in clients with a token.</p>
      <label class=field>Token
        <input type=password value=${token} placeholder="ms_…" autocomplete=off spellcheck=${false} autofocus required
          onInput=${(event) => setToken(event.target.value)} /></label>
      <${Problem} error=${error} />
      <div class=actions><button class=primary>Sign in</button></div>
      <p class="soft small">It stays in this tab, and is sent to this server alone. To make a token, run${" "}
        <code>millstream token create</code>.</p>
    </form>
  </main>`;
}

function ThemeButton() {
  return html`<button class=quiet type=button data-theme-toggle aria-label="Switch between light and dark">◐</button>`;
}

function Frame({ onOut }) {
  const [at, setAt] = useState(place());
  useEffect(() => {
    const moved = () => { setAt(place()); document.getElementById("main")?.focus({ preventScroll: true }); scrollTo(0, 0); };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useShortcuts();
  const found = PAGES.find((one) => one.name === at.page);
  const Shown = at.name ? found?.one : found?.page;
  useEffect(() => { document.title = `${at.name || found?.title || "Millstream"} · Millstream`; }, [at.name, found]);
  return html`
    <header class=bar>
      <a class=brand href="#/">Millstream</a><${Connection} /><span class=spread></span>
      <${HealthBadge} />
      <span class="soft small who" title="Who is signed in">${hasToken() ? session.access.name : ""}</span>
      ${hasToken() && html`<button type=button class=quiet onClick=${onOut}>Sign out</button>`}
      <${ThemeButton} />
    </header>
    <div class=frame>
      <${LinkBar} label=Pages current=${at.page}>${PAGES.map((one) => html`<a key=${one.name} href=${`#/${one.name}`}
        aria-current=${one.name === at.page ? "page" : null} title=${`g then ${one.key}`}>${one.title}</a>`)}
        <a href="/docs">HTTP interface</a><//>
      <main id=main tabindex=-1>${Shown
        ? html`<${Shown} key=${`${at.page}/${at.name}`} name=${at.name} asked=${at.asked} />`
        : html`<h1>There is no such page</h1><p><a href="#/">Back to the overview</a></p>`}</main>
    </div>`;
}

const STATES = { live: ["good", "live"], refused: ["", "not live"], closed: ["", "…"], silent: ["warn", "no answer"] };

const WHY = {
  refused: "The live figures need the permission store:read",
  silent: "The server has said nothing for some seconds; what is shown may be old",
};

/** How the connection is by which the server pushes its figures. */
function Connection() {
  const { state } = usePulse();
  const [kind, text] = STATES[state] ?? ["warn", "reconnecting"];
  const why = WHY[state] ?? null;
  return html`<span class="badge dot ${kind}" role=status title=${why}>${text}</span>`;
}

/** “/” goes to the page's search; “g” and a letter to a page. */
function useShortcuts() {
  useEffect(() => {
    let wasG = 0;
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest?.("input, textarea, select, dialog")) return;
      const page = PAGES.find((one) => one.key === event.key);
      if (event.key === "/") {
        const box = document.querySelector("[data-search]");
        if (box) { event.preventDefault(); box.focus(); }
      } else if (page && Date.now() - wasG < 1_500) {
        location.hash = `#/${page.name}`;
      }
      wasG = event.key === "g" ? Date.now() : 0;
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

render(html`<${App} />`, document.getElementById("app"));
