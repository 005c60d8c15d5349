"use strict";
// The page works without this: it adds a filter, a choice of colours, and buttons that copy.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const entries = all("main details, #error-table tr[id]");
  const words = new Map(entries.map((entry) => [entry, entry.textContent.toLowerCase()]));

  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let operations = 0;
    for (const entry of entries) {
      entry.hidden = !wanted.every((word) => words.get(entry).includes(word));
      if (!entry.hidden && entry.classList.contains("operation")) operations += 1;
    }
    for (const section of all("main section")) {
      section.hidden = !all("details, tr[id]", section).some((entry) => !entry.hidden);
    }
    for (const link of all("nav li a")) {
      link.parentElement.hidden = document.getElementById(link.hash.slice(1)).hidden;
    }
    for (const group of all("nav div")) {
      group.hidden = document.getElementById(group.dataset.section).hidden;
    }
    document.getElementById("intro").hidden = wanted.length > 0;
    document.getElementById("none").hidden = entries.some((entry) => !entry.hidden);
    found.textContent = wanted.length ? `${operations} operation${operations === 1 ? "" : "s"}` : "";
  };

  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.hidden || target.closest("[hidden]")) { search.value = ""; filter(); }
    if (target.tagName === "DETAILS") target.open = true;
    target.scrollIntoView();
  };

  search.addEventListener("input", filter);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
    if (event.key === "Escape" && document.activeElement === search) { search.value = ""; filter(); search.blur(); }
  });

  const theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    label();
  });

  for (const place of all(".origin")) place.textContent = location.origin;
  for (const button of all(".example button")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre").textContent;
      try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
      catch { button.textContent = "Select it"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
  for (const part of all(".scripted")) part.hidden = false;
  label();
  addEventListener("hashchange", openTarget);
  openTarget();
})();
