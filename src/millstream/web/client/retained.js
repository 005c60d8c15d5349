// Retained values: the latest of each (type, key), kept up to date.
//
// What this client has sent shows at once. Which of two writers won is decided by offsets alone, so
// every screen ends with the same values, in whatever order answers and messages arrive.

/** What is retained in a room, as one client sees it. */
export class RetainedValues {
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
