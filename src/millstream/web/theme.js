// Light or dark: what the system says, until a button with `data-theme-toggle` is pressed. Loaded in the
// head without `type=module`, so that a page never shows the other colours first.
"use strict";
(() => {
  const KEPT = "millstream-theme";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const tell = () => dispatchEvent(new CustomEvent("themechange", { detail: { dark: isDark() } }));

  const kept = (() => { try { return localStorage.getItem(KEPT); } catch { return null; } })();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;

  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-theme-toggle]")) return;
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem(KEPT, root.dataset.theme); } catch { /* a page may not keep anything */ }
    tell();
  });
  system.addEventListener("change", tell);
})();
