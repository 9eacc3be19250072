/**
 * Inline Markdown to nodes: code, emphasis, strikethrough, links, line breaks.
 *
 * Everything becomes text nodes and elements of a fixed set; HTML in the text stays text. Links are
 * http(s) only, images become links, nothing is loaded. Emphasis follows the delimiter algorithm of
 * CommonMark 0.31, section "An algorithm for parsing nested emphasis and links", which is linear for
 * hostile input; nesting is limited, because the text is a model's.
 */

const DEEPEST = 20;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
// Counts are bounded where a failing match would otherwise be tried from many places.
const BARE_URL = /https?:\/\/[^\s<>"`\]]{1,2000}/y;
const ANGLE_URL = /<(https?:\/\/[^\s<>]+)>/y;
const LINE_BREAK_TAG = /<br\s*\/?>/iy;
const LINK_TARGET =
  /\(\s{0,8}<?((?:[^\s<>()]|\([^\s<>()]*\))*)>?(?:\s{1,8}(?:"[^"]*"|'[^']*'))?\s{0,8}\)/y;
const PLAIN = /[^\\`*_~[\]!<\nh]+/y;

/**
 * Render one run of inline text.
 *
 * @param {string} text
 * @returns {DocumentFragment}
 */
export function renderInline(text) {
  return new InlineRun(text).render();
}

/** The address when it is safe to link to, else null. */
export function safeUrl(text) {
  try {
    const url = new URL(text);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

class InlineRun {
  #text;
  #at = 0;
  #out = document.createDocumentFragment();
  /** Open emphasis, oldest first; `inside` is how deep the elements behind it are nested. */
  #delimiters = [];
  /** Open brackets: {node, delimiters, isImage, isActive}, oldest first. */
  #brackets = [];
  /** Backtick run length -> position after which no such run follows. */
  #unclosed = new Map();

  constructor(text) {
    this.#text = text;
  }

  render() {
    while (this.#at < this.#text.length) this.#step();
    this.#resolveEmphasis(0);
    this.#out.normalize();
    return this.#out;
  }

  #step() {
    const character = this.#text[this.#at];
    if (character === "\\") this.#escape();
    else if (character === "`") this.#code();
    else if (character === "*" || character === "_" || character === "~") this.#delimiter(character);
    else if (character === "[") this.#openBracket("[", false);
    else if (character === "!" && this.#text[this.#at + 1] === "[") this.#openBracket("![", true);
    else if (character === "]") this.#closeBracket();
    else if (character === "<") this.#angle();
    else if (character === "\n") this.#lineBreak();
    else this.#plain(character);
  }

  #add(node) {
    this.#out.append(node);
    return node;
  }

  #addText(text) {
    return this.#add(document.createTextNode(text));
  }

  #match(pattern) {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#text);
  }

  #plain(character) {
    if (character === "h" && !/[\p{L}\p{N}]/u.test(this.#text[this.#at - 1] ?? " ")) {
      const match = this.#match(BARE_URL);
      if (match) {
        const address = trimmedUrl(match[0]);
        if (this.#link(address, address)) return;
      }
    }
    const run = this.#match(PLAIN)?.[0] ?? character;
    this.#addText(run);
    this.#at += run.length;
  }

  #link(address, label) {
    const href = safeUrl(address);
    if (href === null) return false;
    this.#add(anchor(href)).append(label);
    this.#at += address.length;
    return true;
  }

  #escape() {
    const next = this.#text[this.#at + 1] ?? "";
    const isEscape = ESCAPABLE.test(next);
    this.#addText(isEscape ? next : "\\");
    this.#at += isEscape ? 2 : 1;
  }

  #lineBreak() {
    this.#add(document.createElement("br"));
    this.#at += 1;
  }

  #angle() {
    const breakTag = this.#match(LINE_BREAK_TAG);
    const url = this.#match(ANGLE_URL);
    if (breakTag) {
      this.#add(document.createElement("br"));
      this.#at += breakTag[0].length;
    } else if (url && safeUrl(url[1]) !== null) {
      this.#at += 1;
      this.#link(url[1], url[1]);
      this.#at += 1;
    } else {
      this.#addText("<");
      this.#at += 1;
    }
  }

  #code() {
    const length = runLength(this.#text, this.#at, "`");
    const start = this.#at + length;
    const end = this.#closingTicks(start, length);
    if (end < 0) {
      this.#addText("`".repeat(length));
      this.#at = start;
      return;
    }
    const content = this.#text.slice(start, end).replaceAll("\n", " ");
    const isPadded = /^ .* $/s.test(content) && content.trim() !== "";
    const code = this.#add(document.createElement("code"));
    code.append(isPadded ? content.slice(1, -1) : content);
    this.#at = end + length;
  }

  #closingTicks(start, length) {
    if (start >= (this.#unclosed.get(length) ?? Infinity)) return -1;
    for (let at = this.#text.indexOf("`", start); at >= 0; ) {
      const found = runLength(this.#text, at, "`");
      if (found === length) return at;
      at = this.#text.indexOf("`", at + found);
    }
    this.#unclosed.set(length, start);
    return -1;
  }

  #delimiter(character) {
    const length = runLength(this.#text, this.#at, character);
    const before = this.#text[this.#at - 1] ?? " ";
    const after = this.#text[this.#at + length] ?? " ";
    const isLeft = !/\s/.test(after) && (!PUNCTUATION.test(after) || /[\s\p{P}\p{S}]/u.test(before));
    const isRight = !/\s/.test(before) && (!PUNCTUATION.test(before) || /[\s\p{P}\p{S}]/u.test(after));
    const isWordly = character === "_";
    const node = this.#addText(character.repeat(length));
    this.#at += length;
    if (character === "~" && length !== 2) return;
    this.#delimiters.push({
      node,
      character,
      length,
      original: length,
      inside: 0,
      canOpen: isLeft && (!isWordly || !isRight || PUNCTUATION.test(before)),
      canClose: isRight && (!isWordly || !isLeft || PUNCTUATION.test(after)),
    });
  }

  #openBracket(spelling, isImage) {
    const node = this.#addText(spelling);
    this.#at += spelling.length;
    this.#brackets.push({ node, isImage, isActive: true, delimiters: this.#delimiters.length });
  }

  #closeBracket() {
    const opener = this.#brackets.pop();
    this.#at += 1;
    const target = opener?.isActive ? this.#match(LINK_TARGET) : null;
    const href = target ? safeUrl(target[1]) : null;
    if (href === null) {
      this.#addText("]");
      return;
    }
    this.#at += target[0].length;
    this.#resolveEmphasis(opener.delimiters);
    if (opener.isImage && this.#brackets.length > 0) {
      // A link holds no link: a picture inside one is only its words.
      opener.node.data = "";
      return;
    }
    const link = anchor(href);
    while (opener.node.nextSibling !== null) link.append(opener.node.nextSibling);
    if (link.textContent === "") link.append(href);
    for (const inner of link.querySelectorAll("a")) inner.replaceWith(...inner.childNodes);
    opener.node.replaceWith(link);
    for (const bracket of this.#brackets) bracket.isActive = false;
  }

  /** Match closers with openers among the delimiters from `bottom` on, then forget them. */
  #resolveEmphasis(bottom) {
    const floors = new Map();
    const stack = [];
    for (const closer of this.#delimiters.splice(bottom)) {
      while (closer.canClose && closer.length > 0) {
        const kind = `${closer.character}${closer.canOpen}${closer.original % 3}`;
        const index = findOpener(stack, closer, floors.get(kind) ?? 0);
        const isFound = index >= 0;
        if (isFound) match(stack, index, closer);
        for (const [name, height] of floors) floors.set(name, Math.min(height, stack.length));
        if (!isFound) floors.set(kind, stack.length);
        if (!isFound) break;
      }
      if (closer.canOpen && closer.length > 0) stack.push(closer);
    }
  }
}

/** Make the text between an opener of the stack and a closer an element. */
function match(stack, index, closer) {
  const opener = stack[index];
  // Openers in between are text now; what was built behind them lies inside.
  for (const skipped of stack.splice(index + 1)) opener.inside = Math.max(opener.inside, skipped.inside);
  const height = opener.inside + 1;
  if (height > DEEPEST) {
    // Too deep: both stay text, and nothing is moved.
    closer.canClose = false;
    stack.pop();
    if (index > 0) stack[index - 1].inside = Math.max(stack[index - 1].inside, opener.inside);
    return;
  }
  wrap(opener, closer);
  opener.inside = height;
  if (opener.length > 0) return;
  stack.pop();
  if (index > 0) stack[index - 1].inside = Math.max(stack[index - 1].inside, height);
}

function wrap(opener, closer) {
  const width = opener.length >= 2 && closer.length >= 2 ? 2 : 1;
  const tag = closer.character === "~" ? "del" : width === 2 ? "strong" : "em";
  const node = document.createElement(tag);
  while (opener.node.nextSibling !== closer.node) node.append(opener.node.nextSibling);
  opener.node.after(node);
  for (const delimiter of [opener, closer]) {
    delimiter.length -= width;
    delimiter.node.data = delimiter.character.repeat(delimiter.length);
  }
}

/** Innermost opener for a closer; the sum rule is number 9 of the emphasis rules. */
function findOpener(stack, closer, floor) {
  for (let index = stack.length - 1; index >= floor; index -= 1) {
    const opener = stack[index];
    if (opener.character !== closer.character) continue;
    const isAmbiguous = opener.canClose || closer.canOpen;
    const isSum = (opener.original + closer.original) % 3 === 0;
    const areThirds = opener.original % 3 === 0 && closer.original % 3 === 0;
    if (!isAmbiguous || !isSum || areThirds) return index;
  }
  return -1;
}

function runLength(text, start, character) {
  let end = start;
  while (text[end] === character) end += 1;
  return end - start;
}

/** A bare address without the punctuation of the sentence around it. */
function trimmedUrl(text) {
  let end = text.length;
  let open = 0;
  for (const character of text) open += character === "(" ? 1 : character === ")" ? -1 : 0;
  while (end > 0) {
    const last = text[end - 1];
    if (last === ")" && open < 0) open += 1;
    else if (!/[.,:;!?'*_~\]]/.test(last)) break;
    end -= 1;
  }
  return text.slice(0, end);
}

function anchor(href) {
  const link = document.createElement("a");
  link.href = href;
  link.rel = "noopener noreferrer";
  link.target = "_blank";
  return link;
}
