/**
 * A tool call as a readable block: name, and arguments as they arrive.
 *
 * Complete arguments become a list of names and values, whose numbers keep all their digits where the
 * browser can tell them; incomplete ones are shown as they are.
 */

import { element, icon } from "./elements.js";

/** Render a call {name, arguments}. */
export function renderToolCall(call) {
  return element(
    "section",
    { class: "tool-call", "aria-label": `Tool call ${call.name}` },
    element("header", {}, icon("tool"), element("span", {}, "Calls "), element("code", {}, call.name)),
    renderArguments(call.arguments),
  );
}

function renderArguments(text) {
  const values = objectOf(text);
  if (values === null) return element("pre", { tabindex: "0" }, text);
  const list = element("dl");
  for (const [name, value] of Object.entries(values)) {
    list.append(element("dt", {}, name), element("dd", {}, valueText(value)));
  }
  return list;
}

function objectOf(text) {
  try {
    const value = JSON.parse(text || "{}", keepDigits);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function keepDigits(_, value, context) {
  const hasSource = typeof value === "number" && context?.source !== undefined;
  return hasSource && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}

function valueText(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
