// Hooks for React: import { useRoom, useLog } from "millstream/react".
import * as React from "react";
import { reactHooks } from "./millstream.js";

export const { useRoom, useLog } = reactHooks(React);
