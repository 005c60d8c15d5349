// One job: its arguments, state and progress, its result or its error, its attempts, and its output as it comes.
import { html, useEffect, useState } from "../vendor/preact.js";
import { useAnswer } from "./live.js";
import { History } from "./messages.js";
import { Act, Answer, Outcome, ReadOnly, plural, useTask, when } from "./parts.js";
import { Json, askExactly } from "./payload.js";
import { onJobs, path, refusal, session } from "./session.js";

const KINDS = { waiting: "", scheduled: "", running: "info", done: "good", failed: "bad", cancelled: "warn" };
const CHUNKS_SHOWN = 2_000;
const AGAIN_MS = 2_000; // after a lost connection

export function StateBadge({ of }) {
  return html`<span class="badge ${KINDS[of] ?? ""}">${of}</span>`;
}

/** The name of a task, which may be broken behind its dots and its colon. */
export function TaskName({ of }) {
  return of.split(/(?<=[.:])/).map((part, at) => html`${at > 0 && html`<wbr />`}${part}`);
}

/** What an operator does to a job; nothing without the permission. */
export function JobActs({ of, onChange }) {
  const task = useTask();
  const need = onJobs("write", of.queue);
  if (refusal(need)) return null;
  const ask = (verb) => task.run(async () => {
    const answer = await session.ms.post(path("jobs", of.id, verb));
    onChange();
    if (verb === "cancel" && !answer.cancelled && !answer.requested) throw { name: "Too late", message: `The job is ${answer.state}.` };
  });
  const canCancel = of.state === "waiting" || of.state === "scheduled" || (of.state === "running" && !of.is_cancel_requested);
  return html`
    ${of.state === "failed" && html`<${Act} need=${need} disabled=${task.busy} onClick=${() => ask("retry")}>Retry<//>`}
    ${canCancel && html`<${Act} kind=danger need=${need} disabled=${task.busy} onClick=${() => ask("cancel")}>Cancel<//>`}
    <${Outcome} task=${task} />`;
}

export function JobPage({ name }) {
  const job = useAnswer(() => askExactly(path("jobs", name)), [name]);
  return html`
    <p class=crumb><a href="#/jobs">Jobs</a></p>
    <${Answer} of=${job}>${(found) => html`
      <div class=row><h1>${name}</h1><${StateBadge} of=${found.state} />
        ${found.is_cancel_requested && html`<span class="badge warn">asked to end</span>`}
        <span class=spread></span><${JobActs} of=${found} onChange=${job.reload} /></div>
      <${ReadOnly} need=${onJobs("write", found.queue)} />
      <dl class=facts>
        <dt>task</dt><dd class=mono>${found.task}</dd>
        <dt>queue</dt><dd><a href=${`#${path("queues", found.queue)}`}>${found.queue}</a></dd>
        ${found.schedule && html`<dt>schedule</dt><dd><a href="#/jobs?tab=schedules">${found.schedule}</a></dd>`}
        <dt>put</dt><dd>${when(found.put)}</dd>
        ${found.until && html`<dt>${TIMES[found.state] ?? "ended"}</dt><dd>${when(found.until)}</dd>`}
        ${found.progress !== null && html`<dt>progress</dt><dd><${Progress} of=${found.progress} /></dd>`}
      </dl>
      ${found.error && html`<section aria-label=Error><h2>Error</h2>
        <p class=reason><b>${found.error.kind}</b> ${found.error.message}</p>
        ${found.error.trace && html`<pre class=trace tabindex=0 aria-label="The traceback">${found.error.trace}</pre>`}</section>`}
      ${found.state === "done" && html`<section aria-label=Result><h2>Result</h2><${Json} of=${found.result} label="The result" /></section>`}
      <section aria-label=Arguments><h2>Arguments</h2><${Json} of=${found.arguments} label="The arguments" /></section>
      ${(found.output || found.state === "running") && html`<${Output} id=${name} />`}
      <section><${History} of=${found.tries} />${!found.tries.length && html`<p class=soft>No attempt has begun.</p>`}</section>`}<//>`;
}

const TIMES = { scheduled: "due", running: "lease ends", waiting: "due" };

/** How far a job is: a share from 0 to 1, and words. */
function Progress({ of }) {
  const plain = JSON.parse(JSON.stringify(of)); // its numbers may be kept as they were written
  const values = typeof plain === "object" ? Object.values(plain) : [plain];
  const share = values.find((one) => typeof one === "number");
  const words = values.find((one) => typeof one === "string") ?? "";
  if (share === undefined && !words) return html`<code>${JSON.stringify(of)}</code>`;
  return html`${share !== undefined && html`<progress max=1 value=${share} aria-label="Progress of the job"></progress>
    ${` ${Math.round(share * 100)} % `}`}${words}`;
}

/** The output of a job, chunk by chunk, as the job writes it. */
function Output({ id }) {
  const { chunks, dropped, state, error } = useOutput(id);
  const text = chunks.map((one) => (typeof one === "string" ? one : `${JSON.stringify(one)}\n`)).join("");
  return html`<section aria-label=Output>
    <div class=row><h2>Output</h2><span class="badge dot ${state === "ended" ? "" : "good"}" role=status>${state}</span></div>
    ${error && html`<p class="notice bad" role=alert>${error.message}</p>`}
    ${dropped > 0 && html`<p class="soft small">${plural(dropped, "earlier chunk")} not shown.</p>`}
    ${text ? html`<pre class=output tabindex=0 aria-label="The output">${text}</pre>` : html`<p class=soft>No output yet.</p>`}
  </section>`;
}

/** Follow the output; a lost connection goes on after the last chunk that came. */
function useOutput(id) {
  const [view, setView] = useState({ chunks: [], dropped: 0, state: "connecting", error: null });
  useEffect(() => {
    const ended = new AbortController();
    const add = (chunk) => setView((before) => {
      const chunks = [...before.chunks, chunk];
      const extra = Math.max(0, chunks.length - CHUNKS_SHOWN);
      return { ...before, chunks: chunks.slice(extra), dropped: before.dropped + extra, state: "live" };
    });
    const run = async () => {
      let last = null;
      while (!ended.signal.aborted) {
        try {
          const isOver = await readOutput(id, last, ended.signal, (chunk, offset) => { last = offset; add(chunk); },
            () => setView((before) => ({ ...before, state: "live" })));
          if (isOver) { setView((before) => ({ ...before, state: "ended" })); return; }
        } catch (error) {
          if (ended.signal.aborted) return;
          if (error.isFinal) { setView((before) => ({ ...before, state: "refused", error })); return; }
        }
        setView((before) => ({ ...before, state: "reconnecting" }));
        await new Promise((done) => { setTimeout(done, AGAIN_MS); });
      }
    };
    run();
    return () => ended.abort();
  }, [id]);
  return view;
}

/** Read the events of one connection; answers whether the job has ended. */
async function readOutput(id, last, signal, onChunk, onOpen) {
  const headers = { accept: "text/event-stream", ...(last === null ? {} : { "last-event-id": last }) };
  const answer = await session.ms.fetch(session.ms.urls[0] + path("jobs", id, "stream"), { headers, signal });
  onOpen();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return false;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const fields = Object.fromEntries(event.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.event === "end") return true;
      if (fields.data !== undefined) onChunk(JSON.parse(fields.data), fields.id);
    }
  }
}
