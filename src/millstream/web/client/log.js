// A log: append, read, and follow over lost connections.
import { invalid } from "./error.js";
import { backoff, pause } from "./events.js";

const WAIT_S = 25; // how long a request waits for the next record; proxies end requests that wait for longer
const READ_MAX = 500; // records of one answer: a page shows the first ones before the last ones have come

/** A log of the server, by name. */
export class Log {
  #ms;

  constructor(ms, name) {
    this.#ms = ms;
    this.name = name;
  }

  get #noun() { return { noun: "log", name: this.name }; }

  #path(query) {
    const given = Object.entries(query).filter(([, value]) => value !== undefined);
    return `/logs/${encodeURIComponent(this.name)}/records?${new URLSearchParams(given)}`;
  }

  /** Append a record; answers its offset once it is durable. Needs the right to write. */
  async append(value, { key, headers, timestamp } = {}) {
    const { offset } = await this.#ms.request("POST", this.#path({}), { value, key, headers, timestamp }, { for: this.#noun });
    return offset;
  }

  /** Read records from an offset on, by default the oldest; answers `{records, next, start, end}`. */
  async read({ start, stop, limit, partition } = {}) {
    return pageOf(await this.#ms.request("GET", this.#path({ start, stop, limit, partition }), undefined, { for: this.#noun }));
  }

  /**
   * Call `onRecord` with each record, in order, from `start` on: "end" (new records), "start" (all) or an
   * offset. The next record waits until a promise of `onRecord` is fulfilled. `onGap({from, to})` tells of
   * offsets that can no longer be read, `onState(state, error)` of the connection: live, reconnecting,
   * refused, closed. Answers a function that ends it.
   */
  follow(onRecord, { start = "end", partition, onState = () => {}, onGap = () => {} } = {}) {
    if (typeof onRecord !== "function") throw invalid("follow takes a function that is called with each record");
    if (start !== "end" && start !== "start" && !(Number.isSafeInteger(start) && start >= 0)) {
      throw invalid(`start is "end", "start" or an offset from 0 on, not ${start}`);
    }
    const ended = new AbortController();
    const reading = new Following(this.#ms, { noun: this.#noun, path: (query) => this.#path({ ...query, partition }), start });
    reading.run({ onRecord, onState: tellChanges(onState), onGap, signal: ended.signal });
    return () => {
      if (ended.signal.aborted) return;
      ended.abort();
      onState("closed");
    };
  }
}

/** One reader of a log: its position, and the requests that wait for the next record. */
class Following {
  #ms;
  #noun;
  #path;
  #position; // the next offset; null before the first answer, to begin at the end
  #hasAnswer = false;
  #isFromStart; // the oldest records may have expired long ago: that is no gap
  #attempt = 0;

  constructor(ms, { noun, path, start }) {
    this.#ms = ms;
    this.#noun = noun;
    this.#path = path;
    this.#isFromStart = start === "start";
    this.#position = { end: null, start: 0 }[start] ?? null;
    if (typeof start === "number") this.#position = start;
  }

  async run({ onRecord, onState, onGap, signal }) {
    while (!signal.aborted) {
      let page;
      try {
        page = await this.#ask(signal, () => onState("live"));
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 410 && Number.isInteger(error.data.start)) {
          this.#skip(error.data.start, onGap);
          continue;
        }
        if (error.isFinal) {
          onState("refused", error);
          return;
        }
        onState("reconnecting", error);
        await pause(backoff(Math.floor(this.#attempt / this.#ms.urls.length)), signal);
        this.#attempt += 1;
        continue;
      }
      this.#attempt = 0;
      if (page.end < this.#position) { // the log was deleted and made anew
        onGap({ from: page.end, to: this.#position });
        this.#position = page.start;
      }
      for (const record of page.records) {
        if (signal.aborted) return;
        this.#position = record.offset + 1;
        await told(onRecord, record);
      }
    }
  }

  /** Records that expired are told as a gap, unless all that are left were asked for. */
  #skip(start, onGap) {
    if (this.#hasAnswer || !this.#isFromStart) onGap({ from: this.#position, to: start });
    this.#position = start;
  }

  async #ask(signal, onAnswer) {
    const url = this.#ms.urls[this.#attempt % this.#ms.urls.length];
    const get = async (query) => {
      const answer = await this.#ms.request("GET", this.#path(query), undefined, { url, signal, for: this.#noun });
      onAnswer();
      return pageOf(answer);
    };
    try {
      if (this.#position === null) { // at the end, as of now
        const page = await get({ limit: 1 });
        this.#position = page.end;
      }
      // The first answer comes at once: it may say that the log was made anew, and has no such offset.
      const wait = this.#hasAnswer ? WAIT_S : 0;
      const page = await get({ start: this.#position, limit: READ_MAX, wait });
      this.#hasAnswer = true;
      return page;
    } catch (error) {
      if (error.status !== 404) throw error;
      onAnswer(); // a log is made by its first record: until then it is empty
      if (this.#hasAnswer) await pause(backoff(0), signal);
      this.#hasAnswer = true;
      this.#position ??= 0;
      return { records: [], start: 0, end: this.#position };
    }
  }
}

function pageOf({ records, next, start_offset: start, end_offset: end }) {
  return { records: records.map(recordOf), next, start, end };
}

/** `value` is the JSON value or text of a record, its bytes, or null. */
function recordOf({ offset, timestamp, appended, key, key_base64, value, base64, headers = {} }) {
  return {
    offset,
    key: key ?? (key_base64 === undefined ? null : bytesOf(key_base64)),
    value: base64 === undefined ? value : base64 === null ? null : bytesOf(base64),
    headers: Array.isArray(headers) ? headers : { ...headers },
    time: timestamp,
    appended,
  };
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

/** Call a page's function, and wait for it; its mistake does not end the reading. */
async function told(fn, value) {
  try {
    await fn(value);
  } catch (error) {
    reportError(error);
  }
}

/** Tell each state once. */
function tellChanges(onState) {
  let last = "";
  return (state, error) => {
    if (state === last) return;
    last = state;
    onState(state, error);
  };
}
