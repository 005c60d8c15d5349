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
export class RoomView extends View {
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
export class LogView extends View {
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
export function reactHooks({ useEffect, useMemo, useState }) {
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
export function vueHooks({ onScopeDispose, shallowRef }) {
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
