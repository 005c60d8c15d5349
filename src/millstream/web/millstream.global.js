// The client for browsers: rooms, logs, queues and the live figures of a Millstream server.
// No dependencies; docs/BROWSER.md explains it, millstream.d.ts has its types.
//
//   <script src="/millstream.global.js"></script>
//   <script>const room = new millstream.Millstream().room("lobby", { user: "Ada" });</script>
//
// Generated from web/client/ by `make generate`: change the files there, not this one.

var millstream = (() => {
"use strict";

// error.js

// Errors: what a server refused, or what went wrong on the way.

const FINAL = new Set([400, 401, 403, 404, 405, 409, 413, 422]);
const FOR_NOW = new Set([0, 502, 503, 504]); // 0: there was no answer; 502 and 504 are said by proxies

/** `name` is the error's name as in the documentation; `data` are its facts; `retry`: it may work later. */
class MillstreamError extends Error {
  constructor({ title = "Failed", detail = "", status = 0, data = {}, retry = false }) {
    super(detail || title);
    Object.assign(this, { name: title, status, data, retry });
  }

  /** Whether asking again, of this server or of another, changes nothing. */
  get isFinal() { return FINAL.has(this.status) && !this.retry; }

  /** Whether nobody knows what became of it, or the store does not answer now: ask what is stored. */
  get isForNow() { return FOR_NOW.has(this.status) || this.name === "OutcomeUnknown"; }

  /** As a frame of a room tells it. */
  get problem() {
    return { title: this.name, detail: this.message, status: this.status, data: this.data, retry: this.retry };
  }
}

/** An argument that cannot be right: what was expected, and what was given. */
function invalid(detail) {
  return new MillstreamError({ title: "InvalidInput", detail, status: 422 });
}

/** The error that an answer tells: a problem document, or whatever a proxy has to say. */
async function problemOf(answer) {
  const text = await answer.text();
  try {
    return new MillstreamError({ ...JSON.parse(text), status: answer.status });
  } catch {
    return new MillstreamError({ detail: `${answer.status} ${text.slice(0, 200)}`, status: answer.status });
  }
}

// events.js

// Server-sent events as they come over `fetch`, which can show a token; and when to try again.

const BACKOFF_MS = 250;
const BACKOFF_MAX_MS = 15_000;

/** Read server-sent events until they end; `onEvent` gets the data of each, `onSign` is told of any sign of life. */
async function readEvents(stream, onEvent, onSign = () => {}) {
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
class EventParser {
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
function backoff(attempt, random = Math.random()) {
  const most = Math.min(BACKOFF_MAX_MS, BACKOFF_MS * 2 ** Math.min(attempt, 20));
  return most / 2 + (most / 2) * random;
}

/** Wait, unless ended before. */
function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}

// log.js

// A log: append, read, and follow over lost connections.

const WAIT_S = 25; // how long a request waits for the next record; proxies end requests that wait for longer
const READ_MAX = 500; // records of one answer: a page shows the first ones before the last ones have come

/** A log of the server, by name. */
class Log {
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

// queue.js

// A queue: pages put work into it, and ask what became of it. Workers elsewhere do the work.

/** A queue of the server, by name. */
class Queue {
  #ms;

  constructor(ms, name) {
    this.#ms = ms;
    this.name = name;
  }

  get #options() { return { for: { noun: "queue", name: this.name } }; }

  #path(place) { return `/queues/${encodeURIComponent(this.name)}/${place}`; }

  /**
   * Put a message; answers its id once it is durable. `delay` in seconds or `at` (a Date, or milliseconds
   * since 1970) put it off; `dedup` makes a repeat harmless. Needs the right to put.
   */
  async put(value, options = {}) {
    return (await this.#put({ value, ...optionsOf(options) })).id;
  }

  /** Put several messages as one commit, each as `{value, key, …}`; answers their ids. */
  async putMany(messages, { delay, at } = {}) {
    const { id, count } = await this.#put({ messages, ...optionsOf({ delay, at }) });
    return Array.from({ length: count }, (_, index) => id + index);
  }

  /** What became of a message: `{state, attempts, …}`. Needs the right to read. */
  async find(id) {
    return this.#ms.request("GET", this.#path(`messages/${id}`), undefined, this.#options);
  }

  async #put(body) {
    return this.#ms.request("POST", this.#path("messages"), body, this.#options);
  }
}

function optionsOf({ at, ...others }) {
  return at === undefined ? others : { ...others, at: at instanceof Date ? at.getTime() : at };
}

// retained.js

// Retained values: the latest of each (type, key), kept up to date.
//
// What this client has sent shows at once. Which of two writers won is decided by offsets alone, so
// every screen ends with the same values, in whatever order answers and messages arrive.

/** What is retained in a room, as one client sees it. */
class RetainedValues {
  /** A Map from type to a Map from key to message. */
  shown = new Map();
  /** Whether own values are stored at an unknown offset, so that the server must be asked. */
  isDoubtful = false;
  #stored = new Map(); // id → message with its offset; deletions too, until they are passed
  #supposed = new Map(); // id → own messages on their way [{n, index, message}], the last sent last
  #changed = new Map();
  #from = 0; // what was stored before it is in a snapshot, or is gone

  /** A stored message: it counts unless something later is known. */
  apply(message) {
    const id = idOf(message);
    const known = Math.max(this.#stored.get(id)?.offset ?? 0, this.#from);
    if (message.offset >= known) this.#stored.set(id, message);
    this.#show(id, message);
  }

  /** A snapshot of everything before an offset: what is not in it is gone, unless stored later. */
  replace(messages, offset) {
    if (offset < this.#from) return; // a later one came before
    for (const [id, one] of [...this.#stored]) {
      if (one.offset >= offset) continue;
      this.#stored.delete(id);
      this.#show(id, one);
    }
    this.#from = 0;
    for (const message of messages) this.apply(message);
    this.#from = offset;
    this.isDoubtful = false;
  }

  /** Offsets begin anew: what is known is gone. */
  clear() {
    this.replace([], Infinity);
    this.#from = 0;
  }

  /** An own message that is on its way: part `index` of send number `n`. */
  suppose(n, index, message) {
    const id = idOf(message);
    const others = (this.#supposed.get(id) ?? []).filter((one) => one.n !== n || one.index !== index);
    this.#supposed.set(id, [...others, { n, index, message }]);
    this.#show(id, message);
  }

  /** Send `n` is over: stored from this offset on, stored somewhere (null), or not at all (undefined). */
  decide(n, offset) {
    for (const [id, waiting] of [...this.#supposed]) {
      const mine = waiting.filter((one) => one.n === n).at(-1);
      if (!mine) continue;
      const others = waiting.filter((one) => one.n !== n);
      if (others.length) this.#supposed.set(id, others);
      else this.#supposed.delete(id);
      if (offset === undefined) {
        this.#show(id, mine.message);
      } else if (offset === null) {
        this.isDoubtful = true;
        this.apply({ ...mine.message, offset: Math.max(this.#from, this.#stored.get(id)?.offset ?? 0) });
      } else {
        this.apply({ ...mine.message, offset: offset + mine.index });
      }
    }
  }

  /** All others' messages before an offset have come: deletions there are no longer compared with any. */
  passed(offset) {
    if (this.isDoubtful) return; // a snapshot from before is on its way
    for (const [id, one] of this.#stored) {
      if (one.deleted && one.offset < offset && !this.#supposed.has(id)) this.#stored.delete(id);
    }
  }

  /** What changed since the last call: `{type, key, message}`, with null for what is gone. */
  takeChanges() {
    const changed = [...this.#changed.values()];
    this.#changed.clear();
    return changed;
  }

  #show(id, { type, key = null }) {
    const top = this.#supposed.get(id)?.at(-1).message ?? this.#stored.get(id);
    const message = top && !top.deleted ? top : null;
    if (!this.shown.has(type)) this.shown.set(type, new Map());
    if (message) this.shown.get(type).set(key, message);
    else this.shown.get(type).delete(key);
    this.#changed.set(id, { type, key, message });
  }
}

function idOf({ type, key = null }) { return JSON.stringify([type, key]); }

// conversation.js

// What was said in a room, and what it means: positions, numbers of sends, presence, retained values.
//
// It takes frames and answers events, and knows no network, clock or page. It outlives connections: a
// join after a lost one says how far this client has come, and what it knows to be stored.

const WAITING_MAX = 1_000; // sends that wait for a connection or an answer
const HISTORY_MAX = 1_000; // messages that a join may ask for
const STATE_BYTES_MAX = 1_024; // of a state of presence, as JSON

/** One client's part in a room. */
class Conversation {
  offset = null; // of the next message; null before the first welcome
  settings = null;
  presence = new Map(); // of a crowded room, the first users and later ones
  users = 0; // how many are there
  retained = new RetainedValues();
  #types;
  #history = 0; // how many of the last messages the first join asks for
  #since = null; // or the first offset that it asks for
  #presentAt = 0; // messages below this offset tell nothing new of who is there
  #movedAt = new Map(); // user → the offset of the last message about it
  #state = null; // of this client's presence, as JSON
  #quietBelow = 0; // who came and went below this offset was before the first join
  #number = 0; // of the last send
  #waiting = new Map(); // number → {frame, from, resolve, reject}; `from`: the offset when it was first sent

  constructor({ user, types, client, history, since }) {
    this.user = user;
    this.client = client;
    this.#types = types;
    this.begin({ history, since });
  }

  /** The frame that sets the state of this client's presence; null if it is set so already. */
  setState(state) {
    if (state !== null && (typeof state !== "object" || Array.isArray(state))) {
      throw invalid(`the state of a presence is an object, such as {typing: true}, or null; not ${JSON.stringify(state)}`);
    }
    const text = JSON.stringify(state ?? {});
    const size = new TextEncoder().encode(text).length;
    if (size > STATE_BYTES_MAX) {
      const detail = `the state of a presence has ${size} bytes as JSON; the limit is ${STATE_BYTES_MAX}`;
      throw new MillstreamError({ title: "TooLarge", detail, status: 413, data: { size, limit: STATE_BYTES_MAX } });
    }
    if (text === (this.#state ?? "{}")) return null;
    this.#state = text;
    return this.stateFrame();
  }

  /** The frame that sets it after a new connection, which has no state; null without a state. */
  stateFrame() { return this.#state && { presence: JSON.parse(this.#state) }; }

  /** Say where the next join begins, if none has succeeded yet or this client starts anew. */
  begin({ history = 0, since = null } = {}) {
    if (!Number.isInteger(history) || history < 0 || history > HISTORY_MAX) {
      throw invalid(`history is a number of messages from 0 to ${HISTORY_MAX}, not ${history}`);
    }
    if (since !== null && !(Number.isSafeInteger(since) && since >= 0)) {
      throw invalid(`since is an offset, a whole number from 0 on, not ${since}`);
    }
    if (history && since !== null) throw invalid("a join begins with a history or at an offset: give history or since");
    if (this.hasJoined && this.#waiting.size) {
      throw new MillstreamError({ title: "Conflict", detail: "sends are on their way: wait for them, then join again" });
    }
    this.#history = history;
    this.#since = since;
    this.offset = null;
    this.#presentAt = 0;
  }

  get hasJoined() { return this.settings !== null; }

  /** What a join asks for: all that came since, also where the server finds sends that nobody confirmed. */
  joining() {
    const query = { client: this.client };
    if (this.user) query.user = this.user;
    if (this.#types) query.types = [...this.#types].join(",");
    if (this.offset === null) {
      if (this.#history) query.history = this.#history;
      if (this.#since !== null) query.since = this.#since;
    } else {
      const unsure = [...this.#waiting.values()].filter((one) => one.from !== null);
      query.offset = Math.min(this.offset, ...unsure.map((one) => one.from));
    }
    const settled = Math.min(this.#number, ...[...this.#waiting.keys()].map((n) => n - 1));
    if (settled) query.sent = settled;
    return query;
  }

  /** A new send, which is sent now or later: its number, and the promise of its offset. */
  send(messages) {
    if (this.#waiting.size >= WAITING_MAX) {
      throw new MillstreamError({ title: "Overloaded", detail: `${WAITING_MAX} sends wait already`, status: 429, retry: true });
    }
    this.#number += 1;
    const frame = { send: messages, n: this.#number };
    const answer = new Promise((resolve, reject) => {
      this.#waiting.set(frame.n, { frame, from: null, resolve, reject });
    });
    this.#suppose(frame);
    return answer;
  }

  /** Every frame that waits, in order, from a number on; they are sent now. */
  toSend(first = 1) {
    const frames = [...this.#waiting.values()].filter((one) => one.frame.n >= first);
    return frames.map((one) => {
      one.from ??= this.offset;
      return one.frame;
    });
  }

  get lastNumber() { return this.#number; }

  /** Understand a frame; answers the events that it means, as `[name, value]`. */
  take(frame) {
    if (frame.welcome) return this.#welcomed(frame.welcome, frame.retained);
    if (frame.messages) return this.#heard(frame.messages, frame.offset);
    if (frame.gap) return this.#missed(frame.gap, frame);
    if (frame.error) return this.#refused(new MillstreamError(frame.error), frame.n);
    if (frame.sent) this.#confirm(frame.sent, frame.offset ?? null);
    return [];
  }

  /** Every send that waits has failed. */
  fail(error) {
    for (const n of [...this.#waiting.keys()]) this.#over(n)?.reject(error);
  }

  /** The room was deleted and made anew: offsets that are known mean nothing there. */
  forget() {
    this.offset = null;
    this.#history = 0;
    this.#since = null;
    this.#presentAt = 0;
    this.retained.clear();
  }

  #welcomed(welcome, retained) {
    const resumes = this.offset !== null;
    this.settings = welcome.settings;
    this.user = welcome.user ?? this.user;
    this.#meet(welcome);
    const missing = new Set(welcome.missing); // refused, and the answer was lost: it is sent again
    for (const [n, one] of [...this.#waiting]) {
      if (n <= (welcome.sent ?? 0) && !missing.has(n)) this.#confirm(n, null);
      // The room has forgotten messages that came since: it may be one of them.
      else if (one.from !== null && (!resumes || one.from < (welcome.start ?? 0))) this.#over(n).reject(unknownOutcome());
    }
    if (!resumes) {
      this.offset = welcome.offset;
      this.#quietBelow = welcome.as_of ?? welcome.offset;
    }
    if (retained) this.retained.replace(retained, welcome.as_of ?? welcome.offset);
    for (const { frame } of this.#waiting.values()) this.#suppose(frame); // which types are retained may be new
    return [["presence", this.#there()]];
  }

  #heard(messages, next) {
    const events = [];
    for (const message of messages) {
      if (message.offset < this.offset) continue; // came already, before the connection was lost
      if (!isAboutPresence(message)) events.push(["message", message]);
      else if (message.offset >= this.#quietBelow) events.push(this.#moved(message));
      if (this.#isRetained(message.type)) this.retained.apply(message);
    }
    this.#advance(next);
    return events;
  }

  /** All users, as of an offset; answers whether that is as new as what is known. */
  meetAll(presence, offset) {
    if (offset < Math.max(this.offset ?? 0, this.#presentAt)) return false;
    this.#meet({ presence, as_of: offset });
    return true;
  }

  #meet({ presence = [], users = presence.length, as_of = 0 }) {
    this.presence = new Map(presence.map((one) => [one.user, { ...one, state: one.state ?? {} }]));
    this.users = users;
    this.#presentAt = as_of;
    this.#movedAt.clear();
  }

  #there() { return { presence: this.presence, users: this.users }; }

  #moved({ offset, type, data: { user, state }, time }) {
    // A message that was overtaken by a later one about the same user tells nothing new.
    if (offset >= Math.max(this.#presentAt, this.#movedAt.get(user) ?? 0)) {
      this.#movedAt.set(user, offset);
      const isKnown = this.presence.has(user);
      const isHidden = !isKnown && this.presence.size < this.users; // it may be one who was not named
      if (type === "present") {
        if (isKnown) this.presence.set(user, { ...this.presence.get(user), state });
      } else if (type === "left") {
        if (isKnown || isHidden) this.users -= 1;
        this.presence.delete(user);
      } else if (!isKnown) {
        this.users += 1;
        this.presence.set(user, { user, since: time, connections: 1, state: {} });
      }
    }
    return ["presence", { ...this.#there(), [type]: user }];
  }

  #missed({ from, to }, frame) {
    const { offset, retained, as_of = offset } = frame;
    const isNews = to > this.offset;
    const gap = { from: Math.max(from, this.offset), to };
    if (retained) this.retained.replace(retained, as_of); // messages from `offset` on come all the same
    this.#advance(offset);
    if (!isNews) return [];
    if (!frame.presence) return [["gap", gap]];
    this.#meet(frame); // who came and went meanwhile was not told
    return [["gap", gap], ["presence", this.#there()]];
  }

  #advance(next) {
    this.offset = Math.max(this.offset, next);
    this.retained.passed(this.offset);
  }

  #confirm(n, offset) {
    if (offset !== null && offset === this.offset) this.#advance(offset + 1); // own messages are not delivered
    this.#over(n, offset)?.resolve(offset);
  }

  #refused(error, n) {
    const one = n === undefined ? undefined : this.#over(n);
    if (!one) return [["error", error]];
    one.reject(error);
    return [];
  }

  /** A send is over; `offset` undefined: not stored, null: stored, nobody said where. */
  #over(n, offset) {
    const one = this.#waiting.get(n);
    this.#waiting.delete(n);
    if (one) this.retained.decide(n, offset);
    return one;
  }

  #suppose({ send, n }) {
    send.forEach((one, index) => {
      if (this.#isRetained(one.type)) this.retained.suppose(n, index, { ...one, from: this.user });
    });
  }

  #isRetained(type) { return this.settings?.retained?.includes(type) ?? false; }
}

/** What the store says of who comes and goes; what was appended to the log by hand may look like it. */
function isAboutPresence({ type, data }) {
  if (typeof data?.user !== "string") return false;
  return type === "joined" || type === "left" || (type === "present" && typeof data.state === "object");
}

function unknownOutcome() {
  return new MillstreamError({
    title: "OutcomeUnknown",
    detail: "the connection was lost for longer than the room remembers: the message may be stored or not",
  });
}

// lines.js

// Lines: how frames travel. `run(onFrame)` ends when the line does; it raises what the server refused.

/** A WebSocket. */
class SocketLine {
  kind = "socket";
  #address;
  #socket = null;

  constructor({ place, query, ticket }) {
    const asked = new URLSearchParams(ticket ? { ...query, ticket } : query);
    this.#address = `${place.replace(/^http/, "ws")}?${asked}`;
  }

  run(onFrame) {
    return new Promise((done, fail) => {
      this.#socket = new WebSocket(this.#address);
      this.#socket.onmessage = ({ data }) => {
        const frame = JSON.parse(data);
        const error = frame.error && frame.n === undefined && !frame.presence ? new MillstreamError(frame.error) : null;
        if (error?.isFinal) fail(error);
        onFrame(frame);
      };
      // Why a handshake failed is hidden from pages: the other line finds out.
      this.#socket.onclose = done;
    });
  }

  send(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  /** Ask whether it still carries. */
  ping() { this.send({ ping: 1 }); }

  close() {
    this.#socket?.close();
    this.#socket?.onclose?.(); // a dead peer would keep us waiting for its part
  }
}

/** Server-sent events one way, requests the other: where a proxy lets no socket pass. */
class EventLine {
  kind = "events";
  #ms;
  #noun;
  #place;
  #query;
  #ended = new AbortController();
  #onFrame = null;
  #last = Promise.resolve();
  #welcome = {}; // its generation: what is posted after this client came back elsewhere is not stored

  constructor({ ms, place, query, noun }) {
    this.#ms = ms;
    this.#noun = noun;
    this.#place = new URL(place);
    this.#query = query;
  }

  async run(onFrame) {
    this.#onFrame = onFrame;
    const asked = new URLSearchParams({ live: "sse", ...this.#query });
    const headers = { accept: "text/event-stream" };
    const answer = await this.#ms.fetch(`${this.#place}?${asked}`, { headers, signal: this.#ended.signal }, this.#noun);
    await readEvents(answer.body, (text) => this.#take(JSON.parse(text)), () => onFrame({ pong: 1 }));
  }

  #take(frame) {
    this.#welcome = frame.welcome ?? this.#welcome;
    this.#onFrame(frame);
  }

  /** One after the other, so that they are stored in the order in which they were sent. */
  send(frame) {
    this.#last = this.#last.then(() => (frame.presence ? this.#putState(frame.presence) : this.#post(frame)));
  }

  ping() {} // the server gives a sign of life by itself

  close() { this.#ended.abort(); }

  async #putState(state) {
    const { connection, user } = this.#welcome;
    await this.#ask("PUT", "presence", { connection, user, state });
  }

  async #post({ send, n }) {
    const { client, user } = this.#query;
    const body = { messages: send, client, user, n, generation: this.#welcome.generation };
    const answer = await this.#ask("POST", "messages", body, n);
    if (answer) this.#onFrame({ sent: n, offset: answer.offset });
  }

  /** Ask the server, and tell its refusal as a frame; null if there is no answer. */
  async #ask(method, place, body, n) {
    const signal = this.#ended.signal;
    if (signal.aborted) return null;
    const options = { url: this.#place.origin, signal, for: this.#noun };
    try {
      return await this.#ms.request(method, `${this.#place.pathname}/${place}`, body, options);
    } catch (error) {
      if (error.isForNow ?? true) this.close(); // whether it was stored is asked at the next join
      else this.#onFrame({ error: error.problem, n });
      return null;
    }
  }
}

// room.js

// A room, joined: it carries a conversation over one connection after the other, on any of the servers.

const WELCOME_MS = 10_000; // a line that has not greeted by then is given up
const PING_MS = 20_000; // a line that was silent for so long is asked whether it still carries
const ANSWER_MS = 10_000; // one that does not answer within that is dead
const STEADY_MS = 5_000; // one that lived for so long ends the backoff
const SOCKETS_ONLY = 3; // where sockets have passed, no other line is tried in so many rounds of all servers
const TICK_S = 0.05; // of conflated types, until the room has said its own
const CONFLATED = ["pointer", "cursor"];

/** `on(event, fn)` tells of `message`, `gap`, `presence`, `retained`, `state` and `error`. */
class Room {
  #ms;
  #talk;
  #listeners = new Map();
  #line = null;
  #urls;
  #attempt = 0;
  #hadSocket = false;
  #retry = 0;
  #tick = 0;
  #latest = new Map(); // of each conflated type, what the next tick sends

  #hasBegun = false; // a first connection was tried
  #isConnecting = false; // a connection is made, or carries
  #joinsAnew = false; // the connection was ended in order to make another one at once

  constructor(ms, name, { user = "", types = null, client = randomId(), history, since, presence } = {}) {
    this.name = name;
    this.state = "connecting";
    this.url = "";
    this.#ms = ms;
    this.#talk = new Conversation({ user, types, client, history, since });
    if (presence) this.#talk.setState(presence);
    this.#urls = [...ms.urls];
    globalThis.addEventListener?.("online", this.#atOnce);
    queueMicrotask(() => this.#connect());
  }

  get #noun() { return { noun: "room", name: this.name }; }
  get user() { return this.#talk.user; }
  get client() { return this.#talk.client; }
  get settings() { return this.#talk.settings; }
  /** Of the next message. */
  get offset() { return this.#talk.offset; }
  /** Who is here: a Map from user to `{user, since, connections, state}`; of a crowded room, some of them. */
  get presence() { return this.#talk.presence; }
  /** How many users are here. */
  get users() { return this.#talk.users; }
  /** The latest value of each key: a Map from type to a Map from key to message. */
  get retained() { return this.#talk.retained.shown; }

  /**
   * Wait until the room is joined; answers the room. Late joiners say where they begin: `history` asks
   * for so many of the last messages, `since` for all from an offset on. A room that was joined before is
   * joined anew then. Later connections continue where the last one ended, whatever was asked here.
   */
  async join(options) {
    this.#check();
    if (options) this.#begin(options);
    if (this.state === "live") return this;
    await new Promise((done, fail) => {
      const off = this.on("state", ({ state, error }) => {
        if (state === "live") done();
        else if (this.#isOver) fail(error);
        else return;
        off();
      });
    });
    return this;
  }

  /** Call `fn` at each such event; answers a function that ends it. */
  on(event, fn) {
    if (!this.#listeners.has(event)) this.#listeners.set(event, new Set());
    this.#listeners.get(event).add(fn);
    return () => this.#listeners.get(event).delete(fn);
  }

  /**
   * Send to all others in the room. Answers the offset once it is stored, null if the server found
   * it stored after a lost connection. Of conflated types the latest goes with the next tick, unnumbered:
   * the answer is null, at once.
   */
  async send(type, data, { key } = {}) {
    const message = key === undefined ? { type, data } : { type, data, key };
    if (!this.#isConflated(type)) return this.sendMany([message]);
    this.#check();
    this.#latest.set(type, message);
    this.#tick ||= setTimeout(() => this.#flush(), 1000 * (this.settings?.tick ?? TICK_S));
    return null;
  }

  /** Send several messages as one commit; answers the offset of the first. */
  async sendMany(messages) {
    this.#check();
    const answer = this.#talk.send(messages);
    if (this.state === "live") this.#sendFrom(this.#talk.lastNumber);
    this.#tellChanges();
    return answer;
  }

  /** Delete the retained value of a key. */
  async delete(type, key) {
    return this.sendMany([{ type, key, data: null, deleted: true }]);
  }

  /**
   * Set the state of this client's presence, a small object such as `{typing: true}`, without a rejoin. All
   * are shown it beside the user, also those who join later. It ends with the connection; this client sets it
   * again after a lost one. A refusal of the server is told as the event `error`.
   */
  setPresence(state) {
    this.#check();
    if (this.#talk.hasJoined && !this.user) throw invalid("a client without a user has no presence: join with a user");
    const frame = this.#talk.setState(state);
    if (frame && this.state === "live") this.#line.send(frame);
  }

  /** Have all users in `presence`, also those of a crowded room; answers it. */
  async everyone() {
    while (this.#talk.presence.size < this.#talk.users) {
      this.#check();
      const path = `/rooms/${encodeURIComponent(this.name)}/presence`;
      const { presence, offset } = await this.#ms.request("GET", path, undefined, { url: this.url, for: this.#noun });
      if (this.#talk.meetAll(presence, offset)) break; // else the room has gone on meanwhile
    }
    return this.presence;
  }

  /** Leave. Sends that were not confirmed fail. */
  close() {
    this.#end("closed", new MillstreamError({ title: "Closed", detail: "the room was left" }));
  }

  #begin(options) {
    this.#talk.begin(options);
    if (!this.#hasBegun) return; // the first connection is yet to be made
    if (!this.#line) {
      this.#atOnce();
      return;
    }
    const line = this.#line;
    this.#line = null; // what it still brings is not heard
    this.#joinsAnew = true;
    this.#tell("reconnecting", { error: null, retry_ms: 0 });
    line.close();
  }

  get #isOver() { return this.state === "closed" || this.state === "refused"; }

  #check() {
    if (this.#isOver) throw new MillstreamError({ title: "Closed", detail: `this room is ${this.state}` });
  }

  // Connecting.

  #atOnce = () => { // the network is back: do not wait for the backoff
    if (this.#isConnecting || this.#isOver) return;
    clearTimeout(this.#retry);
    this.#connect();
  };

  async #connect() {
    const url = this.#urls[0];
    let failure = null;
    this.#hasBegun = this.#isConnecting = true;
    try {
      const ticket = await this.#ms.ticketFor(this.name, url);
      const place = `${url}/rooms/${encodeURIComponent(this.name)}`;
      for (const Line of this.#lines()) {
        if (this.#isOver) return;
        const line = new Line({ ms: this.#ms, place, ticket, query: this.#talk.joining(), noun: this.#noun });
        const ended = await this.#carry(line, url);
        failure = ended.failure;
        if (ended.wasGreeted || failure?.isFinal || this.#joinsAnew) break;
      }
    } catch (error) {
      failure = error;
    }
    this.#isConnecting = false;
    this.#lost(failure);
  }

  /** A server without a store to ask refuses sockets for a while; that is no proxy to be got around. */
  #lines() {
    const isEarly = this.#attempt < SOCKETS_ONLY * this.#urls.length;
    return this.#hadSocket && isEarly ? [SocketLine] : [SocketLine, EventLine];
  }

  /** Use a line until it ends: whether it greeted, and what it failed with. */
  async #carry(line, url) {
    let greetedAt = 0;
    let heardAt = Date.now();
    let askedAt = 0;
    const watch = setInterval(() => { // in a hidden tab it is called once per minute only
      const now = Date.now();
      if (!greetedAt ? now - heardAt > WELCOME_MS : askedAt > heardAt && now - askedAt > ANSWER_MS) line.close();
      else if (now - heardAt > PING_MS && askedAt <= heardAt) { askedAt = now; line.ping(); }
    }, PING_MS / 8);
    this.#line = line;
    const failure = await line.run((frame) => {
      if (this.#line !== line) return;
      heardAt = Date.now();
      this.#take(frame);
      if (!frame.welcome) return;
      greetedAt = heardAt;
      this.url = url;
      this.#hadSocket ||= line.kind === "socket";
      this.#live(line.kind);
    }).then(() => null, (error) => error);
    clearInterval(watch);
    line.close();
    this.#line = null;
    if (greetedAt && Date.now() - greetedAt > STEADY_MS) this.#attempt = 0;
    return { wasGreeted: greetedAt > 0, failure };
  }

  #live(via) {
    this.state = "live"; // told below: what a listener then sends comes after what waits
    const state = this.#talk.stateFrame();
    if (state && this.user) this.#line.send(state);
    this.#sendFrom(1);
    this.#flush();
    this.#tell("live", { via });
    if (this.#talk.retained.isDoubtful) this.#settle();
  }

  /** A connection is gone: try the next address; later, once each of them has failed. */
  #lost(error) {
    if (this.#isOver) return;
    // Beyond the end of the room: what the page asked for is wrong, or the room was made anew.
    const isBeyond = error?.status === 416;
    if (error?.isFinal || (isBeyond && this.#talk.offset === null)) {
      this.#end("refused", error);
      return;
    }
    if (isBeyond) this.#talk.forget();
    if (this.#joinsAnew) {
      this.#joinsAnew = false;
      this.#connect();
      return;
    }
    this.#urls.push(this.#urls.shift());
    const wait = backoff(Math.floor(this.#attempt / this.#urls.length));
    this.#attempt += 1;
    this.#tell(this.#talk.hasJoined ? "reconnecting" : "connecting", { error, retry_ms: wait });
    this.#retry = setTimeout(() => this.#connect(), wait);
  }

  #end(state, error) {
    if (this.state === "closed") return;
    globalThis.removeEventListener?.("online", this.#atOnce);
    clearTimeout(this.#retry);
    clearTimeout(this.#tick);
    this.#tell(state, { error });
    this.#line?.close();
    this.#talk.fail(error);
    this.#tellChanges();
  }

  // What comes and goes.

  #take(frame) {
    for (const [event, value] of this.#talk.take(frame)) this.#emit(event, value);
    this.#tellChanges();
  }

  #sendFrom(number) {
    for (const frame of this.#talk.toSend(number)) this.#line.send(frame);
  }

  #tell(state, about = {}) {
    this.state = state;
    this.#emit("state", { state, url: this.url, ...about });
  }

  #tellChanges() {
    const changed = this.#talk.retained.takeChanges();
    if (changed.length) this.#emit("retained", changed);
  }

  #emit(event, value) {
    for (const fn of this.#listeners.get(event) ?? []) {
      try {
        fn(value);
      } catch (error) {
        reportError(error); // one listener's mistake does not silence the others
      }
    }
  }

  /** Own values were stored at offsets that nobody told: ask for all values as they stand. */
  async #settle() {
    try {
      const path = `/rooms/${encodeURIComponent(this.name)}/retained`;
      const { retained, offset } = await this.#ms.request("GET", path, undefined, { url: this.url, for: this.#noun });
      this.#talk.retained.replace(retained, offset);
      this.#tellChanges();
    } catch (error) {
      this.#emit("error", error);
    }
  }

  // Conflated types: the latest of each, once per tick.

  #isConflated(type) {
    return (this.settings?.conflated ?? CONFLATED).includes(type);
  }

  #flush() {
    clearTimeout(this.#tick);
    this.#tick = 0;
    if (this.state !== "live" || !this.#latest.size) return; // kept for the next welcome
    this.#line.send({ send: [...this.#latest.values()] });
    this.#latest.clear();
  }
}

function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// views.js

// Views: a room or a log as a value that changes, for pages that are built of components.
//
// A view has the contract of Svelte's stores (`subscribe`), and hooks of React and Vue are made of it. The
// frameworks are arguments: this file depends on none of them. A view joins with its first subscriber, and
// leaves with its last one.

const KEPT = 100; // messages or records of a view, unless the page says otherwise

/** What all views have: a value, and those who are told of each new one. */
class View {
  #subscribers = new Set();
  #isTelling = false;
  #end = null; // ends what was begun for the first subscriber

  constructor(value) {
    this.value = Object.freeze(value);
  }

  /** Call `fn` with the value, now and after each change; answers a function that ends it. */
  subscribe(fn) {
    const subscriber = { fn };
    this.#subscribers.add(subscriber);
    this.#end ??= this.begin();
    fn(this.value);
    return () => {
      this.#subscribers.delete(subscriber);
      // A component that is shown anew subscribes again at once: it goes on with the same connection.
      setTimeout(() => this.#endIfAlone(), 0);
    };
  }

  /** Change some fields of the value; subscribers are told once for all changes of a turn. */
  change(fields) {
    this.value = Object.freeze({ ...this.value, ...fields });
    if (this.#isTelling) return;
    this.#isTelling = true;
    queueMicrotask(() => {
      this.#isTelling = false;
      for (const { fn } of [...this.#subscribers]) fn(this.value);
    });
  }

  #endIfAlone() {
    if (this.#subscribers.size || !this.#end) return;
    this.#end();
    this.#end = null;
  }
}

/**
 * A room: `{state, error, user, users, presence, messages, retained}`. `presence` is a list, `messages` the last
 * ones, those of this client among them once they are stored. Options are those of a room, and `keep`.
 */
class RoomView extends View {
  #ms;
  #name;
  #options;
  #keep;
  #room = null;

  constructor(ms, name, { keep = KEPT, ...options } = {}) {
    super({ state: "connecting", error: null, user: "", users: 0, presence: [], messages: [], retained: new Map() });
    this.#ms = ms;
    this.#name = name;
    this.#options = options;
    this.#keep = keep;
  }

  /** Send, as a room does; the message is shown once it is stored. */
  send = async (type, data, options) => {
    const room = this.#joined();
    const offset = await room.send(type, data, options);
    if (offset !== null) this.#show([{ type, data, offset, from: room.user, time: Date.now(), ...options }]);
    return offset;
  };

  /** Set the state of this client's presence, as a room does. */
  setPresence = (state) => this.#joined().setPresence(state);

  begin() {
    const room = this.#room = this.#ms.room(this.#name, this.#options);
    this.change({ state: room.state, error: null, messages: [] });
    const who = () => this.change({ user: room.user, users: room.users, presence: [...room.presence.values()] });
    room.on("message", (message) => this.#show([message]));
    room.on("presence", who);
    room.on("retained", () => this.change({ retained: new Map([...room.retained].map(([type, values]) => [type, new Map(values)])) }));
    room.on("state", ({ state, error = null }) => this.change({ state, error }));
    room.on("error", (error) => this.change({ error }));
    return () => {
      this.#room = null;
      room.close();
    };
  }

  #joined() {
    if (!this.#room) throw new Error("nobody is subscribed to this view of a room: subscribe, then send");
    return this.#room;
  }

  /** Messages in the order of offsets: the answer to a send may come after a later message. */
  #show(messages) {
    const all = [...this.value.messages, ...messages].sort((one, other) => one.offset - other.offset);
    this.change({ messages: all.slice(-this.#keep) });
  }
}

/** A log: `{state, error, records, gap}`, with the last records. Options are those of `follow`, and `keep`. */
class LogView extends View {
  #ms;
  #name;
  #options;
  #keep;
  #next = null; // where to continue, if subscribers come back

  constructor(ms, name, { keep = KEPT, ...options } = {}) {
    super({ state: "connecting", error: null, records: [], gap: null });
    this.#ms = ms;
    this.#name = name;
    this.#options = options;
    this.#keep = keep;
  }

  begin() {
    const start = this.#next ?? this.#options.start ?? "end";
    return this.#ms.log(this.#name).follow((record) => {
      this.#next = record.offset + 1;
      this.change({ records: [...this.value.records, record].slice(-this.#keep) });
    }, {
      ...this.#options,
      start,
      onGap: (gap) => this.change({ gap }),
      onState: (state, error = null) => this.change({ state, error }),
    });
  }
}

/** `useRoom` and `useLog` for React, or for Preact: `reactHooks(React)`. */
function reactHooks({ useEffect, useMemo, useState }) {
  const use = (make, ms, name) => {
    const view = useMemo(make, [ms, name]);
    const [shown, show] = useState({ view: null, value: null });
    useEffect(() => view.subscribe((value) => show({ view, value })), [view]);
    return [view, shown.view === view ? shown.value : view.value]; // of another name: not yet shown
  };
  return {
    useRoom(ms, name, options) {
      const [view, value] = use(() => new RoomView(ms, name, options), ms, name);
      return { ...value, send: view.send, setPresence: view.setPresence };
    },
    useLog(ms, name, options) {
      return use(() => new LogView(ms, name, options), ms, name)[1];
    },
  };
}

/** `useRoom` and `useLog` for Vue: `vueHooks(Vue)`. Both answer a ref; `useRoom` also how to send. */
function vueHooks({ onScopeDispose, shallowRef }) {
  const use = (view) => {
    const value = shallowRef(view.value);
    onScopeDispose(view.subscribe((now) => { value.value = now; }));
    return value;
  };
  return {
    useRoom(ms, name, options) {
      const view = new RoomView(ms, name, options);
      return { room: use(view), send: view.send, setPresence: view.setPresence };
    },
    useLog(ms, name, options) {
      return use(new LogView(ms, name, options));
    },
  };
}

// client.js

// A server, or several that share a store: who asks, the HTTP interface, server-sent events, rooms.
//
// The rules of a room are in conversation.js and retained.js, which know no network, clock or page.


const TICKET_S = 3600; // then the server ends the connection, and the next one shows a new ticket

/** One server, or several that share a store: `url` is an address or a list of them. */
class Millstream {
  #token;
  #ticket;
  #made = new Map(); // room → the last ticket that was made from the token
  #held = new Map(); // noun → the last ticket that the page gave for it

  constructor({ url, token = "", ticket = "" } = {}) {
    this.urls = [url ?? location.origin].flat().map((one) => String(one).replace(/\/+$/, ""));
    this.#token = token;
    this.#ticket = ticket;
  }

  /** Join a room. It connects at once, and stays until `close`. */
  room(name, options = {}) {
    return new Room(this, name, options);
  }

  /** A log: `append`, `read`, `follow`. */
  log(name) {
    return new Log(this, name);
  }

  /** A queue: `put`, `putMany`, `find`. */
  queue(name) {
    return new Queue(this, name);
  }

  get(path) { return this.request("GET", path); }
  post(path, body = {}) { return this.request("POST", path, body); }
  put(path, body = {}) { return this.request("PUT", path, body); }
  patch(path, body = {}) { return this.request("PATCH", path, body); }
  delete(path) { return this.request("DELETE", path); }

  /** Ask the HTTP interface: answers what its JSON holds, its text, or null. Raises `MillstreamError`. */
  async request(method, path, body, { url = this.urls[0], signal, for: noun } = {}) {
    const given = body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } };
    const answer = await this.fetch(url + path, { method, signal, ...given }, noun);
    const text = await answer.text();
    if (!text) return null;
    return answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text;
  }

  /**
   * `fetch` with the token, or with a ticket for a noun; a refusal is raised as `MillstreamError`. A ticket is
   * used until the server refuses it: then the page is asked for another one.
   */
  async fetch(address, options = {}, noun = null) {
    const id = JSON.stringify(noun);
    const held = this.#held.get(id);
    const shown = this.#token || (held ?? (await this.#given(noun)));
    const isFromFunction = !this.#token && typeof this.#ticket === "function";
    if (isFromFunction) this.#held.set(id, shown);
    try {
      return await this.#fetch(address, options, shown);
    } catch (error) {
      if (!isFromFunction || error.status !== 401) throw error;
      this.#held.delete(id);
      if (held === undefined) throw error; // it is new, and refused all the same
      return this.fetch(address, options, noun);
    }
  }

  async #fetch(address, options, shown) {
    const headers = { ...options.headers };
    if (shown) headers.authorization = `Bearer ${shown}`;
    let answer;
    try {
      answer = await fetch(address, { ...options, headers, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new MillstreamError({ title: "Unreachable", detail: `${address}: ${error.message}`, retry: true });
    }
    if (!answer.ok) throw await problemOf(answer);
    return answer;
  }

  /** Call `onFigures` with the server's figures, once per second; answers a function that ends it. */
  live(onFigures, onState) {
    return this.events("/live", onFigures, onState);
  }

  /** Call `onEvent` with the JSON of each server-sent event of a path, over lost connections. */
  events(path, onEvent, onState = () => {}) {
    const ended = new AbortController();
    this.#follow(path, ended.signal, onEvent, onState);
    return () => { ended.abort(); onState("closed"); };
  }

  async #follow(path, signal, onEvent, onState) {
    let attempt = 0;
    while (!signal.aborted) {
      const url = this.urls[attempt % this.urls.length];
      try {
        const answer = await this.fetch(url + path, { headers: { accept: "text/event-stream" }, signal });
        onState("live");
        await readEvents(answer.body, (text) => { attempt = 0; onEvent(JSON.parse(text)); });
      } catch (error) {
        if (signal.aborted) return;
        if (error.isFinal) { onState("refused", error); return; }
      }
      onState("reconnecting");
      await pause(backoff(attempt), signal);
      attempt += 1;
    }
  }

  /** A ticket, by which a socket shows who asks: browsers cannot show a token there. */
  async ticketFor(room, url) {
    if (!this.#token) return this.#given({ noun: "room", name: room });
    try {
      this.#made.set(room, await this.#make(room, url));
    } catch (error) {
      // A page can ask no server of another origin for one; but those of its store take the last one.
      if (error.status || !this.#made.has(room)) throw error;
    }
    return this.#made.get(room);
  }

  async #make(room, url) {
    const ticket = async (action) => {
      const wanted = { permissions: [`room:${action}:${room}`], seconds: TICKET_S };
      return (await this.request("POST", "/tickets", wanted, { url })).ticket;
    };
    try {
      return await ticket("write");
    } catch (error) {
      if (error.status !== 403) throw error;
      return ticket("read"); // a token that may only listen
    }
  }

  async #given(noun) {
    return typeof this.#ticket === "function" ? this.#ticket(noun) : this.#ticket;
  }
}

return Object.freeze({ Millstream, Log, LogView, MillstreamError, Queue, Room, RoomView, reactHooks, vueHooks });
})();
