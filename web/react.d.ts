import type { ReactHooks } from "./millstream.js";

export const useRoom: ReactHooks["useRoom"];
export const useLog: ReactHooks["useLog"];
