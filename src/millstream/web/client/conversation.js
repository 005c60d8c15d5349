// What was said in a room, and what it means: positions, numbers of sends, presence, retained values.
//
// It takes frames and answers events, and knows no network, clock or page. It outlives connections: a
// join after a lost one says how far this client has come, and what it knows to be stored.
import { MillstreamError, invalid } from "./error.js";
import { RetainedValues } from "./retained.js";

const WAITING_MAX = 1_000; // sends that wait for a connection or an answer
const HISTORY_MAX = 1_000; // messages that a join may ask for
const STATE_BYTES_MAX = 1_024; // of a state of presence, as JSON

/** One client's part in a room. */
export class Conversation {
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
