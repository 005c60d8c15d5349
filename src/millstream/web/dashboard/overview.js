// The overview: how the whole store goes, second by second, and which queues want attention.
import { html } from "../vendor/preact.js";
import { PAGE, firstOf } from "./listing.js";
import { useAnswer, usePulse } from "./live.js";
import { Answer, Figures, LiveChart, count, format, plural } from "./parts.js";
import { QueueTable } from "./queues.js";
import { onStore, refusal } from "./session.js";

const QUEUES_SHOWN = 8;

export function Overview() {
  const { pulse } = usePulse();
  const queues = useAnswer(() => firstOf("/queues", "queues", PAGE));
  const why = refusal(onStore("read"));
  return html`
    <div class=row><h1>Overview</h1><span class=spread></span>${pulse && html`<${Things} of=${pulse} />`}</div>
    ${why ? html`<p class=notice>${why} Without it the live figures are not shown.</p>` : html`
      <${Totals} of=${pulse} />
      <section class=charts aria-label="Live charts">
        <${LiveChart} title="Messages" series=${[{ label: "published", unit: "/s" }, { label: "claimed", unit: "/s" },
          { label: "acknowledged", unit: "/s" }]} of=${({ rates }) => [rates.published, rates.claimed, rates.acked]} />
        <${LiveChart} title="Depth of all queues" series=${[{ label: "waiting, delayed or in flight", color: "var(--chart-4)" }]}
          of=${(one) => [one.depth]} />
        <${LiveChart} title="Oldest message that can be claimed" series=${[{ label: "age", unit: "s", color: "var(--chart-3)" }]}
          of=${(one) => [one.oldest_age_s]} />
        <${LiveChart} title="Commits" series=${[{ label: "median", unit: "ms" }, { label: "99th percentile", unit: "ms", color: "var(--chart-5)" }]}
          of=${({ commit_ms }) => [commit_ms.p50, commit_ms.p99]} />
      </section>`}
    <section>
      <div class=row><h2>Queues</h2><span class=spread></span><a href="#/queues">All queues</a></div>
      <${Answer} of=${queues}>${({ found, after }) => html`<${QueueTable} of=${busiest(found)} />
        ${after && html`<p class="soft small">Of the first ${plural(found.length, "queue")} by name; there are more.</p>`}`}<//>
    </section>`;
}

/** How many things there are, each leading to its page. */
function Things({ of }) {
  const things = [["log", "#/logs"], ["queue", "#/queues"], ["room", "#/rooms"], ["connection", null]];
  return html`<ul class=chips>${things.map(([noun, href]) => {
    const [number, name] = plural(of[`${noun}s`], noun).split(" ");
    return html`<li key=${noun}>${href ? html`<a href=${href}><b>${number}</b> ${name}</a>` : html`<b>${number}</b> ${name}`}</li>`;
  })}</ul>`;
}

function Totals({ of }) {
  return html`<${Figures} of=${[
    ["published", format(of?.rates.published, "/s")],
    ["claimed", format(of?.rates.claimed, "/s")],
    ["acknowledged", format(of?.rates.acked, "/s")],
    ["waiting, delayed or in flight", of ? count(of.depth) : "–"],
    ["oldest waits", of?.oldest_age_s ? format(of.oldest_age_s, "s") : "–"],
    ["commit, p99", format(of?.commit_ms.p99, "ms")],
  ]} />`;
}

/** Those with failed messages first, then those with the most to do. */
function busiest(queues) {
  const depth = (one) => one.available + one.unrouted + one.delayed + one.in_flight;
  return [...queues].sort((a, b) => Number(b.failed > 0) - Number(a.failed > 0) || depth(b) - depth(a)
    || b.done_per_second - a.done_per_second).slice(0, QUEUES_SHOWN);
}
