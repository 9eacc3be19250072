/**
 * Block structure of Markdown: lines in, a list of plain block objects out. Builds no nodes.
 *
 * Understood: paragraphs, headings, fences, lists (nested, with task boxes), quotes, rules, tables.
 * Not understood on purpose: HTML, reference links, underlined headings and code by indentation (a
 * model that indents text by four spaces hardly ever means code). Whether a line starts a block
 * depends on the lines before it and on one line after it, which is what `MarkdownView` relies on.
 * Source: CommonMark 0.31, tables from the GitHub flavour.
 */

const DEEPEST = 10;
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t](.*))?$/s;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const MARKER = /^( {0,3})([-*+]|(\d{1,9})[.)])([ \t]+|$)/;
const DELIMITER_CELL = /^[ \t]*:?-+:?[ \t]*$/;
const TASK = /^\[([ xX])\][ \t]+/;

/**
 * Parse lines.
 *
 * @param {string[]} lines without line ends
 * @param {number} depth how many lists and quotes are around
 * @returns {object[]} blocks with `type` and `line`, the index of their first line
 */
export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const block = parseBlock(lines, at, depth);
    blocks.push({ ...block, line: at });
    at = block.end;
  }
  return blocks;
}

function parseBlock(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return parseFence(lines, at);
  if (HEADING.test(line)) return parseHeading(line, at);
  if (RULE.test(line)) return { type: "rule", end: at + 1 };
  if (depth < DEEPEST && QUOTE.test(line)) return parseQuote(lines, at, depth);
  if (depth < DEEPEST && MARKER.test(line)) return parseList(lines, at, depth);
  if (isTableStart(lines, at)) return parseTable(lines, at);
  return parseParagraph(lines, at, depth);
}

/** Whether the line at `at` would end a paragraph before it. */
function interrupts(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (isTableStart(lines, at)) return true;
  if (depth >= DEEPEST) return false;
  const marker = MARKER.exec(line);
  const isItem = marker !== null && marker[4] !== "" && (marker[3] ?? "1") === "1";
  return QUOTE.test(line) || isItem;
}

function parseFence(lines, at) {
  const [, indent, fence, info] = FENCE.exec(lines[at]);
  const closing = new RegExp(`^ {0,3}${fence[0] === "~" ? "~" : "`"}{${fence.length},}[ \\t]*$`);
  const leading = new RegExp(`^ {0,${indent.length}}`);
  const content = [];
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) {
    content.push(lines[end].replace(leading, ""));
    end += 1;
  }
  const language = info.trim().split(/\s/, 1)[0];
  return { type: "code", language, text: content.join("\n"), end: Math.min(end + 1, lines.length) };
}

function parseHeading(line, at) {
  const [, marks, text = ""] = HEADING.exec(line);
  const content = text.trim();
  let length = content.length;
  while (content[length - 1] === "#") length -= 1;
  const bare = content.slice(0, length);
  const isClosed = bare === "" || /[ \t]$/.test(bare);
  return { type: "heading", level: marks.length, text: (isClosed ? bare : content).trim(), end: at + 1 };
}

function parseQuote(lines, at, depth) {
  const inner = [];
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) {
    inner.push(lines[end].replace(QUOTE, ""));
    end += 1;
  }
  return { type: "quote", blocks: parseBlocks(inner, depth + 1), end };
}

function parseList(lines, at, depth) {
  const kind = markerKind(lines[at]);
  const items = [];
  let isLoose = false;
  let end = at;
  while (end < lines.length && markerKind(lines[end]) === kind && !RULE.test(lines[end])) {
    const item = parseItem(lines, end, depth);
    items.push(item);
    end = item.end;
    const isFollowed = end < lines.length && markerKind(lines[end]) === kind;
    isLoose ||= item.isLoose || (isFollowed && isBlank(lines[end - 1]));
  }
  const start = Number(MARKER.exec(lines[at])[3] ?? 1);
  return { type: "list", isOrdered: /\d/.test(kind), start, isLoose, items, end };
}

/** `-`, `*`, `+`, `0.` or `0)`; null for a line that is no item. */
function markerKind(line) {
  const match = MARKER.exec(line);
  return match === null ? null : match[2].replace(/^\d+/, "0");
}

function parseItem(lines, at, depth) {
  const [whole, indent, mark, , gap] = MARKER.exec(lines[at]);
  const isWide = gap.length > 4 || gap === "";
  const width = isWide ? indent.length + mark.length + 1 : whole.length;
  // Models often indent less than the marker is wide; two columns are enough to belong.
  const needed = Math.min(width, indent.length + 2);
  const inner = [lines[at].slice(Math.min(width, lines[at].length))];
  let end = at + 1;
  while (end < lines.length && belongs(lines, end, needed, depth)) {
    inner.push(withoutIndent(lines[end], width));
    end += 1;
  }
  const task = TASK.exec(inner[0]);
  if (task) inner[0] = inner[0].slice(task[0].length);
  const blocks = parseBlocks(inner, depth + 1);
  return { task: task ? task[1] !== " " : null, blocks, isLoose: hasGap(inner, blocks), end };
}

function belongs(lines, at, needed, depth) {
  const line = lines[at];
  if (isBlank(line)) return true;
  if (indentOf(line) >= needed) return true;
  if (isBlank(lines[at - 1]) || MARKER.test(line)) return false;
  // A line that simply goes on, without indentation.
  return !interrupts(lines, at, depth);
}

/** Whether a blank line separates two blocks of an item. */
function hasGap(lines, blocks) {
  return blocks.some((block, index) => index > 0 && isBlank(lines[block.line - 1]));
}

function isTableStart(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|")) return false;
  const delimiters = lines[at + 1];
  if (!delimiters.includes("-") || !/^[ \t|:-]+$/.test(delimiters)) return false;
  const cells = splitRow(delimiters);
  return cells.length === splitRow(lines[at]).length && cells.every((cell) => DELIMITER_CELL.test(cell));
}

function parseTable(lines, at) {
  const head = splitRow(lines[at]);
  const alignments = splitRow(lines[at + 1]).map(alignmentOf);
  const rows = [];
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) {
    const cells = splitRow(lines[end]);
    rows.push(head.map((_, column) => cells[column] ?? ""));
    end += 1;
  }
  return { type: "table", head, alignments, rows, end };
}

/** Cells of a row; `\|` and bars in code do not split. */
function splitRow(line) {
  const cells = [];
  let cell = "";
  let isCode = false;
  const text = line.trim().replace(/^\|/, "");
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (character === "\\" && text[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (character === "|" && !isCode) {
      cells.push(cell.trim());
      cell = "";
    } else {
      if (character === "`") isCode = !isCode && text.includes("`", at + 1);
      cell += character;
    }
  }
  if (cell.trim() !== "") cells.push(cell.trim());
  return cells;
}

function alignmentOf(cell) {
  const text = cell.trim();
  if (!text.endsWith(":")) return "left";
  return text.startsWith(":") ? "center" : "right";
}

function parseParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end, depth)) end += 1;
  const text = lines
    .slice(at, end)
    .map((line) => line.trim())
    .join("\n");
  return { type: "paragraph", text, end };
}

function isBlank(line) {
  return line.trim() === "";
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function withoutIndent(line, width) {
  return line.slice(Math.min(width, indentOf(line)));
}
