/** The client for browsers: rooms, logs, queues, the HTTP interface and the live figures of a Millstream server. */

export interface Options {
  /** The server's address, or those of several servers that share a store; this page's by default. */
  url?: string | string[];
  /** A token; sockets use tickets that are made from it. */
  token?: string;
  /**
   * A ticket, or a function that gets one for a room, a log or a queue. It is called at each connection to a
   * room, and when the server refuses the last ticket; its argument is null for other requests.
   */
  ticket?: string | ((noun: Noun | null) => string | Promise<string>);
}

/** What a ticket is for. */
export interface Noun {
  noun: "room" | "log" | "queue";
  name: string;
}

export class Millstream {
  constructor(options?: Options);
  readonly urls: string[];
  /** Join a room. It connects at once, and stays until `close`. */
  room<Types extends object = Record<string, unknown>>(name: string, options?: RoomOptions): Room<Types>;
  log<T = unknown>(name: string): Log<T>;
  queue<T = unknown>(name: string): Queue<T>;
  /** Ask the HTTP interface: what its JSON holds, its text, or null. Raises `MillstreamError`. */
  get<T = unknown>(path: string): Promise<T>;
  post<T = unknown>(path: string, body?: unknown): Promise<T>;
  put<T = unknown>(path: string, body?: unknown): Promise<T>;
  patch<T = unknown>(path: string, body?: unknown): Promise<T>;
  delete<T = unknown>(path: string): Promise<T>;
  request<T = unknown>(method: string, path: string, body?: unknown, options?: { url?: string; signal?: AbortSignal; for?: Noun }): Promise<T>;
  /** `fetch` with the token, or with the ticket for a noun. */
  fetch(address: string, options?: RequestInit, noun?: Noun | null): Promise<Response>;
  /** The server's figures, once per second; answers a function that ends it. */
  live(onFigures: (figures: Record<string, unknown>) => void, onState?: OnState): () => void;
  /** Each server-sent event of a path, over lost connections; answers a function that ends it. */
  events<T = unknown>(path: string, onEvent: (event: T) => void, onState?: OnState): () => void;
}

export type OnState = (state: "live" | "reconnecting" | "refused" | "closed", error?: MillstreamError) => void;

/** A log; `T` is the type of its values. */
export class Log<T = unknown> {
  constructor(ms: Millstream, name: string);
  readonly name: string;
  /** Append a record; answers its offset once it is durable. */
  append(value: T, options?: { key?: string; headers?: Record<string, unknown>; timestamp?: number }): Promise<number>;
  /** Read records from an offset on, by default the oldest. */
  read(options?: { start?: number; stop?: number; limit?: number; partition?: number }): Promise<RecordPage<T>>;
  /**
   * Call `onRecord` with each record in order, over lost connections; the next one waits for its promise.
   * Answers a function that ends it.
   */
  follow(onRecord: (record: LogRecord<T>) => unknown, options?: FollowOptions): () => void;
}

export interface FollowOptions {
  /** "end": new records (the default), "start": all, or an offset. */
  start?: "end" | "start" | number;
  /** Of a log with partitions: which one. */
  partition?: number;
  onState?: OnState;
  /** Offsets that can no longer be read. */
  onGap?: (gap: { from: number; to: number }) => void;
}

export interface LogRecord<T = unknown> {
  offset: number;
  key: string | Uint8Array | null;
  /** A JSON value or text; bytes of other values; null for a tombstone. */
  value: T | Uint8Array | null;
  headers: Record<string, unknown> | [string, unknown][];
  /** Milliseconds since 1970. */
  time: number;
  appended: number;
}

export interface RecordPage<T = unknown> {
  records: LogRecord<T>[];
  /** Where to continue. */
  next: number;
  start: number;
  end: number;
}

/** A queue; `T` is the type of its values. */
export class Queue<T = unknown> {
  constructor(ms: Millstream, name: string);
  readonly name: string;
  /** Put a message; answers its id once it is durable. */
  put(value: T, options?: PutOptions & PutLater): Promise<number>;
  /** Put several messages as one commit; answers their ids. */
  putMany(messages: ({ value: T } & PutOptions)[], options?: PutLater): Promise<number[]>;
  /** What became of a message. */
  find(id: number): Promise<{ state: string; attempts: number; reason: string } & Record<string, unknown>>;
}

export interface PutOptions {
  key?: string;
  headers?: Record<string, unknown>;
  priority?: number;
  group?: string;
  /** A repeat of this id is dropped. */
  dedup?: string;
}

export interface PutLater {
  /** Seconds until the message can be claimed. */
  delay?: number;
  /** Or the time: a Date, or milliseconds since 1970. */
  at?: Date | number;
}

export interface RoomOptions {
  /** Under which name this client is shown; with a ticket it is the ticket's. */
  user?: string;
  /** Which types of messages to hear; all of them by default. */
  types?: Iterable<string>;
  /** How many of the last messages to hear first, up to 1,000. */
  history?: number;
  /** Or: hear all messages from this offset on; those that have expired are told as a gap. */
  since?: number;
  /** The first state of this client's presence, as for `setPresence`. */
  presence?: Record<string, unknown>;
  /** An id of up to 64 letters, digits, `_` and `-`; a random one by default. */
  client?: string;
}

/** A room, joined. `Types` says what data each type of message has. */
export class Room<Types extends object = Record<string, unknown>> {
  readonly name: string;
  readonly state: State;
  /** Where it is connected, or was. */
  readonly url: string;
  readonly user: string;
  readonly client: string;
  /** Null before the first connection. */
  readonly settings: RoomSettings | null;
  /** Of the next message; null before the first connection. */
  readonly offset: number | null;
  /** Who is there; of a crowded room the first hundred, later ones, or `everyone`. */
  readonly presence: ReadonlyMap<string, Present>;
  /** How many users are there. */
  readonly users: number;
  /** From type to key to message; what this client has sent shows at once. */
  readonly retained: ReadonlyMap<string, ReadonlyMap<string | null, Message>>;
  /**
   * Wait until the room is joined; answers the room. `history` and `since` say where a late joiner begins,
   * as in `RoomOptions`; a room that was joined before is joined anew with them.
   */
  join(options?: { history?: number; since?: number }): Promise<this>;
  /** Answers a function that ends it. */
  on<E extends keyof Events>(event: E, fn: (value: Events[E]) => void): () => void;
  /**
   * Send to all others. Answers the offset once it is stored; null if it is known to be stored, but
   * not where. Of conflated types the latest goes with the next tick: the answer is null, at once.
   */
  send<T extends keyof Types & string>(type: T, data: Types[T], options?: { key?: string }): Promise<number | null>;
  /** Send several messages as one commit; answers the offset of the first. */
  sendMany(messages: Outgoing[]): Promise<number | null>;
  /** Delete the retained value of a key. */
  delete(type: string, key: string): Promise<number | null>;
  /**
   * Set the state of this client's presence, an object of up to 1,024 bytes as JSON, without a rejoin; null
   * for no state. A refusal of the server is told as the event `error`.
   */
  setPresence(state: Record<string, unknown> | null): void;
  /** Have all users in `presence`, also those of a crowded room. */
  everyone(): Promise<ReadonlyMap<string, Present>>;
  /** Leave. Sends that were not confirmed fail. */
  close(): void;
}

export type State = "connecting" | "live" | "reconnecting" | "refused" | "closed";

export interface Events {
  message: Message;
  /** Messages that this client does not get: expired, or dropped because it was slow. */
  gap: { from: number; to: number };
  /** `joined`, `left` and `present` name the user who came, who left, or whose state changed. */
  presence: { presence: ReadonlyMap<string, Present>; users: number; joined?: string; left?: string; present?: string };
  /** What changed; `message` is null for what is gone. */
  retained: { type: string; key: string | null; message: Message | null }[];
  state: { state: State; url: string; via?: "socket" | "events"; error?: MillstreamError | null; retry_ms?: number };
  /** What the server refused, and no `send` waits for. */
  error: MillstreamError;
}

export interface Message<T = unknown> {
  type: string;
  data: T;
  /** Missing while an own message is on its way. */
  offset?: number;
  from?: string;
  key?: string;
  /** Milliseconds since 1970. */
  time?: number;
  deleted?: true;
}

export interface Outgoing {
  type: string;
  data: unknown;
  key?: string;
  deleted?: true;
}

export interface Present {
  user: string;
  /** Milliseconds since 1970. */
  since: number;
  connections: number;
  /** What the user has set last by `setPresence`; empty without a state. */
  state: Record<string, unknown>;
}

export interface RoomSettings {
  ttl: number;
  conflated: string[];
  tick: number;
  retained: string[];
  priority: string[];
  messages_per_second: number;
  message_bytes_max: number;
  waiting_bytes_max: number;
}

/** A room as a value that changes, with the contract of Svelte's stores. It joins with its first subscriber. */
export class RoomView<Types extends object = Record<string, unknown>> {
  constructor(ms: Millstream, name: string, options?: RoomOptions & Keep);
  readonly value: RoomValue;
  /** Call `fn` with the value, now and after each change; answers a function that ends it. */
  subscribe(fn: (value: RoomValue) => void): () => void;
  send: Room<Types>["send"];
  setPresence: Room<Types>["setPresence"];
}

/** A log as a value that changes, with the contract of Svelte's stores. */
export class LogView<T = unknown> {
  constructor(ms: Millstream, name: string, options?: Omit<FollowOptions, "onState" | "onGap"> & Keep);
  readonly value: LogValue<T>;
  subscribe(fn: (value: LogValue<T>) => void): () => void;
}

export interface Keep {
  /** How many of the last messages or records the value holds; 100 by default. */
  keep?: number;
}

export interface RoomValue {
  readonly state: State;
  readonly error: MillstreamError | null;
  readonly user: string;
  readonly users: number;
  readonly presence: readonly Present[];
  /** The last ones in the order of offsets, with those of this client once they are stored. */
  readonly messages: readonly Message[];
  readonly retained: ReadonlyMap<string, ReadonlyMap<string | null, Message>>;
}

export interface LogValue<T = unknown> {
  readonly state: "connecting" | "live" | "reconnecting" | "refused" | "closed";
  readonly error: MillstreamError | null;
  readonly records: readonly LogRecord<T>[];
  /** The last offsets that could not be read. */
  readonly gap: { from: number; to: number } | null;
}

export type RoomSending = Pick<RoomView, "send" | "setPresence">;

export interface ReactHooks {
  useRoom(ms: Millstream, name: string, options?: RoomOptions & Keep): RoomValue & RoomSending;
  useLog<T = unknown>(ms: Millstream, name: string, options?: Omit<FollowOptions, "onState" | "onGap"> & Keep): LogValue<T>;
}

export interface VueHooks {
  useRoom(ms: Millstream, name: string, options?: RoomOptions & Keep): { room: { readonly value: RoomValue } } & RoomSending;
  useLog<T = unknown>(ms: Millstream, name: string, options?: Omit<FollowOptions, "onState" | "onGap"> & Keep): { readonly value: LogValue<T> };
}

/** Hooks for React, or for Preact; its functions are the argument. */
export function reactHooks(react: { useEffect: Function; useMemo: Function; useState: Function }): ReactHooks;
/** Hooks for Vue; its functions are the argument. */
export function vueHooks(vue: { onScopeDispose: Function; shallowRef: Function }): VueHooks;

/** `name` is the error's name as in the documentation, `data` its facts, `retry`: it may work later. */
export class MillstreamError extends Error {
  readonly status: number;
  readonly data: Record<string, unknown>;
  readonly retry: boolean;
  /** Asking again changes nothing. */
  readonly isFinal: boolean;
  /** The store does not answer now, or nobody knows whether it was done. */
  readonly isForNow: boolean;
}
