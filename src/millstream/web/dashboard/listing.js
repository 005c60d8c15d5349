// Lists of logs, queues, rooms and copies: page by page, and found by a part of their names.
import { html, useState } from "../vendor/preact.js";
import { useAnswer } from "./live.js";
import { Act, Answer, Search, count } from "./parts.js";
import { query, session } from "./session.js";

export const PAGE = 1_000;
export const SEARCHED_MAX = 20_000; // names that a search looks at: bounds what it asks of a server

/** The first of a listing: `{found, after}`; `after` is set if there are more, or it was not wanted any more. */
export async function firstOf(address, name, limit, isWanted = () => true) {
  const all = { found: [], after: "" };
  do {
    const page = await session.ms.get(query(address, { limit: PAGE, after: all.after }));
    all.found.push(...page[name]);
    all.after = page.after;
  } while (all.after && all.found.length < limit && isWanted());
  return all;
}

/**
 * A page of all that there is of a noun, such as "queue"; a search looks behind what is shown, too. `make`
 * is the dialog that makes one, `need` the permission for it.
 */
export function Listing({ noun, table: Table, make: Make = null, need = null }) {
  const name = `${noun}s`;
  const [wanted, setWanted] = useState("");
  const [shown, setShown] = useState(PAGE);
  const [making, setMaking] = useState(false);
  const isSearch = wanted !== "";
  const limit = isSearch ? Math.max(shown, SEARCHED_MAX) : shown;
  const answer = useAnswer((isWanted) => firstOf(`/${name}`, name, limit, isWanted).then((all) => ({ ...all, limit })), [limit]);
  return html`
    <div class=row><h1>${name[0].toUpperCase()}${name.slice(1)}</h1><span class=spread></span>
      ${Make && html`<${Act} kind=primary need=${need} onClick=${() => setMaking(true)}>New ${noun}…<//>`}
      <${Search} label=${`Find a ${noun}`} value=${wanted} onInput=${setWanted} /></div>
    ${making && html`<${Make} onClose=${() => { setMaking(false); answer.reload(); }} />`}
    <${Answer} of=${answer}>${(all) => {
      const fits = all.found.filter((one) => one.name.includes(wanted));
      if (!fits.length && isSearch) return html`<${Nothing} noun=${noun} all=${all} isDone=${all.limit === limit} />`;
      return html`<${Table} of=${fits.slice(0, shown)} isSearch=${isSearch} />
        ${(all.after || fits.length > shown) && html`<button type=button onClick=${() => setShown(shown + PAGE)}>More ${name}</button>`}`;
    }}<//>`;
}

/** What a search says that found nothing, once it has looked everywhere. */
function Nothing({ noun, all, isDone }) {
  if (all.after && !isDone) return html`<p class=soft role=status aria-busy=true>Looking further…</p>`;
  return html`<p class=soft>${all.after ? `None of the first ${count(all.found.length)} ${noun}s has` : `No ${noun} has`} this in its name.</p>`;
}
