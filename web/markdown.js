/**
 * Markdown of a model to page elements, growing with the stream.
 *
 * Only elements of a fixed set and text nodes are created; no markup is parsed, so nothing in the text
 * can become a script, a style or a request. Blocks that can no longer change are built once.
 */

import { copyButton, element } from "./elements.js";
import { parseBlocks } from "./markdown_blocks.js";
import { renderInline } from "./markdown_inline.js";

/** Markdown headings start below the headings of the page. */
const FIRST_HEADING = 3;

/** Render a whole text. */
export function renderMarkdown(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...parseBlocks(toLines(text)).map(renderBlock));
  return fragment;
}

/** Shows a text that grows at its end; any other change builds it anew. */
export class MarkdownView {
  #element;
  #text = "";
  /** Offset up to which the blocks on the page are final. */
  #settled = 0;
  #tail = [];

  /** @param {HTMLElement} target owned by the view from now on */
  constructor(target) {
    this.#element = target;
  }

  update(source) {
    const text = withoutReturns(source);
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) this.#reset();
    this.#text = text;
    for (const node of this.#tail) node.remove();
    const lines = toLines(text.slice(this.#settled));
    const blocks = parseBlocks(lines);
    const nodes = blocks.map(renderBlock);
    this.#element.append(...nodes);
    const kept = numSettled(blocks, lines.length);
    this.#tail = nodes.slice(kept);
    if (kept > 0) this.#settled += offsetOf(lines, blocks[kept].line);
  }

  #reset() {
    this.#element.replaceChildren();
    this.#settled = 0;
    this.#tail = [];
  }
}

/**
 * Blocks before the last one whose start is certain: its first line and the next are complete, and
 * nothing else decides where a block starts.
 */
function numSettled(blocks, numLines) {
  for (let index = blocks.length - 1; index > 0; index -= 1) {
    if (blocks[index].line + 2 < numLines) return index;
  }
  return 0;
}

function offsetOf(lines, index) {
  return lines.slice(0, index).reduce((offset, line) => offset + line.length + 1, 0);
}

function toLines(text) {
  return withoutReturns(text).split("\n");
}

function withoutReturns(text) {
  return text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text;
}

function renderBlock(block) {
  switch (block.type) {
    case "code":
      return renderCode(block);
    case "heading":
      return element(`h${Math.min(6, block.level + FIRST_HEADING - 1)}`, {}, renderInline(block.text));
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", {}, ...block.blocks.map(renderBlock));
    case "list":
      return renderList(block);
    case "table":
      return renderTable(block);
    default:
      return element("p", {}, renderInline(block.text));
  }
}

function renderCode({ language, text }) {
  const label = language === "" ? "Code" : language;
  return element(
    "figure",
    { class: "code" },
    element("figcaption", {}, element("span", {}, label), copyButton("Copy code", () => text)),
    element("pre", { tabindex: "0", "aria-label": `${label} block` }, element("code", {}, text)),
  );
}

function renderList({ isOrdered, start, isLoose, items }) {
  const list = element(isOrdered ? "ol" : "ul", { start: isOrdered && start !== 1 ? start : null });
  list.append(...items.map((item) => renderItem(item, isLoose)));
  return list;
}

function renderItem({ task, blocks }, isLoose) {
  const item = element("li", { class: task === null ? null : "task" });
  if (task !== null) {
    const name = task ? "done" : "open";
    item.append(element("span", { class: "box", role: "img", "aria-label": name }, task ? "☑" : "☐"), " ");
  }
  for (const block of blocks) {
    const isBare = block.type === "paragraph" && !isLoose;
    item.append(isBare ? renderInline(block.text) : renderBlock(block));
  }
  return item;
}

function renderTable({ head, alignments, rows }) {
  const cell = (tag, text, column) =>
    element(tag, { class: `align-${alignments[column]}`, scope: tag === "th" ? "col" : null }, renderInline(text));
  const row = (tag, cells) => element("tr", {}, ...cells.map((text, column) => cell(tag, text, column)));
  const table = element(
    "table",
    {},
    element("thead", {}, row("th", head)),
    element("tbody", {}, ...rows.map((cells) => row("td", cells))),
  );
  return element("div", { class: "table", role: "region", "aria-label": "Table", tabindex: "0" }, table);
}
