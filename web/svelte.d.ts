import type { FollowOptions, Keep, LogView, Millstream, RoomOptions, RoomView } from "./millstream.js";

export function roomStore(ms: Millstream, name: string, options?: RoomOptions & Keep): RoomView;
export function logStore<T = unknown>(ms: Millstream, name: string, options?: Omit<FollowOptions, "onState" | "onGap"> & Keep): LogView<T>;
