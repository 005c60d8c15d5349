// Preact, its hooks and htm as one module: `html` makes elements of a template.
import { h } from "./preact/core.js";
import htm from "./preact/htm.js";

export { h, render, Component, Fragment, createContext, createRef } from "./preact/core.js";
export * from "./preact/hooks.js";
export const html = htm.bind(h);
