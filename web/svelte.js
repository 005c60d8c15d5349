// Stores for Svelte: import { roomStore, logStore } from "millstream/svelte".
import { LogView, RoomView } from "./millstream.js";

/** A room as a store: `$room.messages`, `room.send(…)`. */
export const roomStore = (ms, name, options) => new RoomView(ms, name, options);

/** A log as a store: `$log.records`. */
export const logStore = (ms, name, options) => new LogView(ms, name, options);
