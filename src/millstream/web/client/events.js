// Server-sent events as they come over `fetch`, which can show a token; and when to try again.

const BACKOFF_MS = 250;
const BACKOFF_MAX_MS = 15_000;

/** Read server-sent events until they end; `onEvent` gets the data of each, `onSign` is told of any sign of life. */
export async function readEvents(stream, onEvent, onSign = () => {}) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onSign();
    for (const data of parser.feed(value)) onEvent(data);
  }
}

/** Cuts a stream of text, however it comes in pieces, into the data of events. */
export class EventParser {
  #rest = "";
  #data = [];

  /** The data of each event that this piece completes. */
  feed(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line === "" && this.#data.length) events.push(this.#data.splice(0).join("\n"));
    }
    return events;
  }
}

/** How long to wait before the next attempt: twice as long each time, and not just when others do. */
export function backoff(attempt, random = Math.random()) {
  const most = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** Math.min(attempt, 20));
  return most / 2 + (most / 2) * random;
}

/** Wait, unless ended before. */
export function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}
