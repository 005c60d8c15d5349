import type { VueHooks } from "./millstream.js";

export const useRoom: VueHooks["useRoom"];
export const useLog: VueHooks["useLog"];
