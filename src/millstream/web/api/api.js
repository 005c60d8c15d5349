// Asks for the document, with a token if the server wants one, and shows it: every operation with
// an example and a form to try it. Whatever comes from the document or an answer is put in as text.

const at = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const search = at("search");

const make = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
};

// Who asks.

const KEPT = "millstream-token";
const token = () => sessionStorage.getItem(KEPT) ?? "";
const ask = (address, options = {}) => {
  const headers = { ...options.headers };
  if (token()) headers.authorization = `Bearer ${token()}`;
  return fetch(address, { ...options, headers, credentials: "omit" });
};

/** What stands in the place of the description until it is there: why it is not. */
const tellWhy = (text, beside = text) => {
  at("loading").textContent = text;
  at("loading").hidden = !text;
  at("asked").textContent = beside;
};

const load = async () => {
  tellWhy("Loading the description of the HTTP interface…", "");
  let answer;
  try {
    answer = await ask("openapi.json");
  } catch (error) {
    tellWhy(`The server does not answer: ${error.message}`);
    return;
  }
  if (answer.ok) {
    show(await answer.json());
    tellWhy("", token() ? "It is good." : "");
  } else if (answer.status === 401) {
    const beside = token() ? "This token is not valid here." : "This server wants a token.";
    tellWhy(`${beside} Enter a token to see the description of the HTTP interface.`, beside);
    sessionStorage.removeItem(KEPT);
    at("token").focus();
  } else {
    tellWhy(`The server answers ${answer.status}: ${await answer.text()}`);
  }
};

at("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEPT, at("token").value.trim());
  at("token").value = "";
  load();
});

// What is shown of the document.

const marked = (text = "") => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));
const joined = (parts, word) => parts.flatMap((part, i) => (i ? [word, ...part] : part));
const link = (name) => make("a", { href: `#type-${name}` }, name);

const typed = (schema) => {
  if (schema.$ref) return [link(schema.$ref.split("/").pop())];
  const choices = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (choices) return joined(choices.map(typed), " or ");
  if (schema.enum) return joined(schema.enum.map((one) => [make("code", {}, String(one))]), " | ");
  if ("const" in schema) return [make("code", {}, String(schema.const))];
  if (schema.type === "array") {
    if (schema.prefixItems) return ["[", ...joined(schema.prefixItems.map(typed), ", "), "]"];
    return schema.items ? ["array of ", ...typed(schema.items)] : ["array"];
  }
  let shown = [schema.type ?? "any"].flat().join(" or ");
  if (schema.contentEncoding) shown += ` (${schema.contentEncoding})`;
  if (!["null", '""', "[]", "{}"].includes(JSON.stringify(schema.default ?? null))) {
    shown += `, ${JSON.stringify(schema.default)} by default`;
  }
  return [shown];
};

const table = (heads, rows) => make("div", { class: "scroll" }, make("table", {},
  make("tr", {}, heads.map((head) => make("th", {}, head))),
  rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, cell))))));

const named = (name, required) =>
  [make("code", {}, name), ...(required ? [make("span", { class: "need", title: "required" }, " *")] : [])];

const fields = (schema) => table(["field", "type", ""], Object.entries(schema.properties ?? {}).map(
  ([name, one]) => [named(name, schema.required?.includes(name)), typed(one), marked(one.description)]));

const contents = (content = {}) => joined(Object.entries(content).map(([kind, one]) =>
  [make("code", {}, kind), ...(kind.includes("json") ? [" ", ...typed(one.schema ?? {})] : [])]), " or ");

const method = (verb) => make("span", { class: `method ${verb}` }, verb.toUpperCase());
const isProblem = (answer) => "application/problem+json" in (answer.content ?? {});

const pretty = (value, indent = "  ") => {
  const line = JSON.stringify(value, null, 1).replace(/\n\s*/g, " ").replace(/([[{]) | ([\]}])/g, "$1$2");
  if (line.length + indent.length <= 76 || typeof value !== "object") return line;
  const inner = `${indent}  `;
  const items = Array.isArray(value)
    ? value.map((one) => pretty(one, inner))
    : Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${pretty(one, inner)}`);
  const [opening, closing] = Array.isArray(value) ? "[]" : "{}";
  return `${opening}\n${inner}${items.join(`,\n${inner}`)}\n${indent}${closing}`;
};

const example = (text) => {
  const button = make("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch { button.textContent = "Select it"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return make("div", { class: "example" }, make("pre", {}, text), button);
};

const address = (path, parameters, value) => {
  const query = new URLSearchParams();
  for (const one of parameters) {
    const given = value(one);
    if (one.in === "path") path = path.replace(`{${one.name}}`, encodeURIComponent(given));
    else if (one.in === "query" && given) query.set(one.name, given);
  }
  return `${location.origin}${path}${query.size ? `?${query}` : ""}`;
};

const commandLine = (path, verb, operation) => {
  const target = address(path, operation.parameters ?? [], (one) => one.example ?? "");
  const body = operation.requestBody?.content["application/json"]?.example;
  const asked = verb === (body ? "post" : "get") ? "" : ` -X ${verb.toUpperCase()}`;
  const quoted = target.includes("?") ? `'${target}'` : target;
  return `curl${asked} ${quoted}${body ? ` \\\n  --json '${pretty(body)}'` : ""}`;
};

const trial = (path, verb, operation) => {
  const inputs = new Map((operation.parameters ?? []).filter((one) => one.in !== "header").map(
    (one) => [one, make("input", { "aria-label": one.name, placeholder: one.name })]));
  for (const [one, input] of inputs) if (one.in === "path") input.value = one.example ?? "";
  const wanted = operation.requestBody?.content["application/json"];
  const body = make("textarea", { "aria-label": "body", rows: 4 });
  body.value = wanted?.example ? JSON.stringify(wanted.example, null, 2) : "";
  const result = make("pre", { class: "result", hidden: "" });
  const form = make("form", { class: "trial" },
    [...inputs].map(([one, input]) => make("label", {}, `${one.name} `, input)),
    wanted ? [body] : [], make("button", {}, "Send"), result);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const target = address(path, [...inputs.keys()], (one) => inputs.get(one).value);
    const json = { headers: { "content-type": "application/json" }, body: body.value };
    try {
      const answer = await ask(target, { method: verb.toUpperCase(), ...(body.value ? json : {}) });
      result.textContent = `${answer.status} ${answer.statusText}\n${await answer.text()}`;
    } catch (error) {
      result.textContent = String(error);
    }
    result.hidden = false;
  });
  return form;
};

const details = (id, head, ...parts) =>
  make("details", { id, class: id.startsWith("type-") ? "type" : "operation" }, head, make("div", {}, ...parts));

const nameOf = (reference) => reference?.split("/").pop();

const operationOf = ({ schemas, responses }, path, verb, operation) => {
  const body = operation.requestBody;
  const held = nameOf(body?.content["application/json"]?.schema?.$ref);
  const answers = Object.entries(operation.responses).map(
    ([status, one]) => [status, responses[nameOf(one.$ref)] ?? one]);
  return details(operation.operationId,
    make("summary", {}, method(verb), " ", make("code", {}, path),
      make("span", { class: "what" }, operation.summary)),
    operation.description ? [make("p", {}, marked(operation.description))] : [],
    make("h3", {}, "Example"), example(commandLine(path, verb, operation)),
    operation.parameters ? [make("h3", {}, "Parameters"), table(["name", "where", "type", ""],
      operation.parameters.map((one) =>
        [named(one.name, one.required), one.in, typed(one.schema), marked(one.description)]))] : [],
    body ? [make("h3", {}, "Body"),
      make("p", {}, body.required ? "" : "May be left out. ", contents(body.content))] : [],
    held ? [fields(schemas[held])] : [],
    make("h3", {}, "Answers"), table(["status", "meaning", "body"],
      answers.filter(([, one]) => !isProblem(one)).map(
        ([status, one]) => [status, one.description, contents(one.content)])),
    make("h3", {}, "Refusals, as a ", link("Problem")), make("ul", { class: "chips" },
      answers.filter(([, one]) => isProblem(one)).map(
        ([status, one]) => make("li", {}, make("b", {}, status), ` ${one.description}`))),
    make("h3", {}, "Try it"), trial(path, verb, operation));
};

const spaced = (name) => {
  const words = name.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return words[0].toUpperCase() + words.slice(1);
};

let entries = [];
let words = new Map();

const show = (found) => {
  const { info, tags, components } = found;
  const { schemas, securitySchemes } = components;
  const operations = Object.entries(found.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([verb, operation]) => [path, verb, operation]));
  at("summary").textContent = info.summary;
  at("conventions").replaceChildren(...marked(info.description));
  at("tokens").textContent = securitySchemes.token.description;
  const greetings = `${location.origin}/logs/greetings/records`;
  at("start").replaceChildren(example(`curl -d hello ${greetings}\ncurl ${greetings}`));
  const group = (name, items) => make("div", { "data-section": name },
    make("h2", {}, make("a", { href: `#${name}` }, name)), make("ul", {}, items));
  const of = (tag) => operations.filter(([, , operation]) => operation.tags.includes(tag.name));
  document.querySelector("nav").replaceChildren(
    ...tags.map((tag) => group(tag.name, of(tag).map(([, verb, { operationId }]) => make("li", {},
      make("a", { href: `#${operationId}` }, method(verb), " ", make("span", {}, spaced(operationId))))))),
    group("types", []), group("errors", []));
  const section = (id, text, ...parts) => make("section", { id },
    make("h2", {}, spaced(id)), make("p", { class: "soft" }, text), ...parts);
  const errors = table(["name", "status", ""], found["x-errors"].map(
    (one) => [make("code", {}, one.name), String(one.status), marked(one.description)]));
  all("tr", errors).slice(1).forEach((row, i) => { row.id = `error-${found["x-errors"][i].name}`; });
  at("content").replaceChildren(
    ...tags.map((tag) => section(tag.name, tag.description,
      ...of(tag).map((one) => operationOf(components, ...one)))),
    section("types", "What bodies and answers hold.", ...Object.entries(schemas).map(([name, schema]) =>
      details(`type-${name}`, make("summary", { class: "type" }, make("code", {}, name),
        make("span", { class: "what" }, marked(schema.description))), fields(schema)))),
    section("errors", "The title of a problem.", errors));
  entries = all("#content details, #errors tr[id]");
  words = new Map(entries.map((entry) => [entry, entry.textContent.toLowerCase()]));
  filter();
  openTarget();
};

// Finding one's way.

const filter = () => {
  const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const entry of entries) {
    entry.hidden = !wanted.every((word) => words.get(entry).includes(word));
  }
  for (const section of all("#content section")) {
    section.hidden = !all("details, tr[id]", section).some((entry) => !entry.hidden);
  }
  for (const entry of all("nav li a")) entry.parentElement.hidden = at(entry.hash.slice(1)).hidden;
  for (const group of all("nav div")) group.hidden = at(group.dataset.section).hidden;
  const left = all(".operation").filter((entry) => !entry.hidden).length;
  at("intro").hidden = wanted.length > 0;
  at("none").hidden = entries.some((entry) => !entry.hidden) || !wanted.length;
  at("found").textContent = wanted.length ? `${left} operation${left === 1 ? "" : "s"}` : "";
};

const openTarget = () => {
  const target = at(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.hidden || target.closest("[hidden]")) { search.value = ""; filter(); }
  if (target.tagName === "DETAILS") target.open = true;
  target.scrollIntoView();
};

search.addEventListener("input", filter);
document.addEventListener("keydown", (event) => {
  const isTyping = document.activeElement.matches("input, textarea");
  if (event.key === "/" && !isTyping) { event.preventDefault(); search.focus(); }
  if (event.key === "Escape" && document.activeElement === search) { search.value = ""; filter(); search.blur(); }
});
addEventListener("hashchange", openTarget);

load();
