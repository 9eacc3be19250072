/**
 * Building of page elements. Text enters only as text nodes; no markup is ever parsed.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Create an element.
 *
 * @param {string} tag
 * @param {object} properties `class`, `on` (event name -> listener), attributes; false, null and
 *   undefined leave an attribute out, true sets it empty
 * @param {...(Node|string)} children
 */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") {
      for (const [type, listener] of Object.entries(value)) node.addEventListener(type, listener);
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children);
  return node;
}

/** A picture of the page's symbol sheet; hidden from assistive technology. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A small button of icon and accessible name. */
export function iconButton(name, label, onClick) {
  return element(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, on: { click: onClick } },
    icon(name),
  );
}

/** A button that copies a text and says so for a moment. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const isCopied = await copyText(text());
    button.replaceChildren(icon(isCopied ? "check" : "warning"));
    button.setAttribute("aria-label", isCopied ? "Copied" : "Copying is not allowed here");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1600);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages over plain HTTP from another machine have no clipboard object.
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const field = element("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isCopied;
}
