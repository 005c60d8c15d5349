// Hooks for Vue: import { useRoom, useLog } from "millstream/vue".
import { onScopeDispose, shallowRef } from "vue";
import { vueHooks } from "./millstream.js";

export const { useRoom, useLog } = vueHooks({ onScopeDispose, shallowRef });
