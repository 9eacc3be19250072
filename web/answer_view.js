/**
 * One answer on the page: thinking folded away, text, tool calls, errors, figures, actions.
 *
 * Shows whatever state the answer is in and may be refreshed at any time; decides nothing.
 */

import { copyButton, element, icon, iconButton } from "./elements.js";
import { MarkdownView } from "./markdown.js";
import { figures } from "./messages.js";
import { renderToolCall } from "./tool_call_view.js";

const PREVIEW_CHARACTERS = 120;

export class AnswerView {
  #answer;
  #actions;
  #parts;
  #text;
  #thinking;
  #shownEnd = null;
  #shownCalls = "[]";

  /**
   * @param {object} answer see `messages.js`
   * @param {{regenerate: Function, openSettings: Function}} actions what its buttons do
   */
  constructor(answer, actions) {
    this.#answer = answer;
    this.#actions = actions;
    const part = (tag, name) => element(tag, { class: name });
    this.#parts = {
      waiting: part("p", "waiting"),
      thinking: part("details", "thinking"),
      summary: part("summary", ""),
      label: part("span", "thinking-label"),
      preview: part("span", "thinking-preview"),
      thinkingText: part("div", "prose thinking-text"),
      prose: part("div", "prose"),
      calls: part("div", "tool-calls"),
      end: part("div", "end"),
    };
    const { waiting, thinking, summary, label, preview, thinkingText, prose, calls, end } = this.#parts;
    // These stay the same nodes while the text grows, or a click could miss them.
    summary.append(icon("chevron"), label, preview);
    thinking.append(summary, thinkingText);
    thinking.addEventListener("toggle", () => this.refresh());
    this.element = element(
      "article",
      { class: "message answer", "aria-label": "Answer" },
      thinking,
      prose,
      calls,
      waiting,
      end,
    );
    this.#text = new MarkdownView(prose);
    this.#thinking = new MarkdownView(thinkingText);
    this.refresh();
  }

  /** Bring the page up to date with the answer. */
  refresh() {
    const answer = this.#answer;
    const { prose, waiting, end } = this.#parts;
    const isRunning = answer.state === "running";
    this.element.setAttribute("aria-busy", String(isRunning));
    this.element.classList.toggle("running", isRunning);
    this.#refreshThinking(isRunning);
    this.#text.update(answer.text);
    prose.hidden = answer.text === "";
    this.#refreshCalls();
    const isWaiting = isRunning && !answer.text && !answer.thinking && !answer.toolCalls.length;
    waiting.hidden = !isWaiting;
    if (isWaiting) waiting.textContent = waitingText(answer.progress);
    if (isRunning) end.replaceChildren();
    else if (this.#shownEnd !== answer.times.endMs) this.#showEnd();
    this.#shownEnd = isRunning ? null : answer.times.endMs;
  }

  #refreshCalls() {
    const calls = this.#answer.toolCalls.filter(Boolean);
    const source = JSON.stringify(calls);
    if (source === this.#shownCalls) return;
    this.#shownCalls = source;
    this.#parts.calls.replaceChildren(...calls.map(renderToolCall));
  }

  #refreshThinking(isRunning) {
    const { thinking, label, preview, thinkingText } = this.#parts;
    const answer = this.#answer;
    thinking.hidden = answer.thinking === "";
    if (thinking.hidden) return;
    const isOpen = isRunning && answer.times.thoughtMs === null;
    thinking.classList.toggle("live", isOpen);
    label.textContent = thinkingLabel(answer, isOpen);
    preview.textContent = isOpen ? lastLine(answer.thinking) : "";
    // A folded text costs nothing while it grows.
    if (thinking.open) this.#thinking.update(answer.thinking);
    if (thinking.open && isOpen) thinkingText.scrollTop = thinkingText.scrollHeight;
  }

  #showEnd() {
    const answer = this.#answer;
    const nodes = [];
    if (answer.error) nodes.push(this.#errorBlock(answer.error));
    const note = endNote(answer);
    if (note) nodes.push(element("p", { class: "note" }, note));
    const actions = element("div", { class: "actions", role: "group", "aria-label": "Answer actions" });
    if (answer.text) actions.append(copyButton("Copy answer", () => answer.text));
    if (!answer.error) {
      actions.append(iconButton("again", "Regenerate", () => this.#actions.regenerate(answer)));
    }
    nodes.push(element("footer", {}, actions, figuresList(answer)));
    this.#parts.end.replaceChildren(...nodes);
  }

  #errorBlock(error) {
    const retry = element(
      "button",
      { type: "button", class: "button", on: { click: () => this.#actions.regenerate(this.#answer) } },
      icon("again"),
      "Retry",
    );
    const block = element(
      "div",
      { class: "error", role: "alert" },
      element("p", {}, error.message),
      element("p", { class: "error-facts" }, errorFacts(error)),
      element("div", { class: "error-actions" }, retry),
    );
    if (error.status === 401) {
      const open = { click: () => this.#actions.openSettings() };
      retry.after(element("button", { type: "button", class: "button", on: open }, "Enter API key"));
    }
    return block;
  }
}

function waitingText(progress) {
  if (progress === null) return "Waiting for the server";
  if (progress.total === 0) return "Reading the prompt";
  return `Reading the prompt: ${number(progress.processed)} of ${number(progress.total)} tokens`;
}

function thinkingLabel({ times }, isOpen) {
  if (isOpen) return "Thinking";
  if (times.firstMs === null || times.thoughtMs === null) return "Thoughts";
  return `Thought for ${seconds((times.thoughtMs - times.firstMs) / 1000)}`;
}

function lastLine(text) {
  const line = text.trimEnd().split("\n").pop();
  return line.slice(-PREVIEW_CHARACTERS);
}

function endNote(answer) {
  if (answer.state === "stopped") return "Stopped.";
  if (answer.finish === "length") return "Ended at the token limit.";
  const isEmpty = !answer.text && !answer.toolCalls.length && !answer.error;
  return isEmpty ? "The answer is empty." : "";
}

function errorFacts({ status, code, param, requestId, retryAfterS }) {
  const facts = [status ? `status ${status}` : "", code, param, requestId];
  if (retryAfterS) facts.push(`try again in ${retryAfterS} s`);
  return facts.filter(Boolean).join(" · ");
}

function figuresList(answer) {
  const known = figures(answer);
  const list = element("ul", { class: "figures", "aria-label": "Figures" });
  const add = (text, title) => list.append(element("li", { title }, text));
  if (known.tokensPerSecond !== null) add(`${rate(known.tokensPerSecond)} tokens/s`, "Decoding speed");
  if (known.firstTokenS !== null) add(`first token ${seconds(known.firstTokenS)}`, "Time to first token");
  if (known.promptTokens !== null) {
    const cached = known.cachedTokens !== null ? ` (${number(known.cachedTokens)} cached)` : "";
    add(`${number(known.promptTokens)} prompt${cached}`, "Prompt tokens");
  }
  if (known.answerTokens !== null) {
    const thinking = known.thinkingTokens ? ` (${number(known.thinkingTokens)} thinking)` : "";
    add(`${number(known.answerTokens)} generated${thinking}`, "Generated tokens");
  }
  return list;
}

function number(value) {
  return value.toLocaleString("en-US");
}

function rate(value) {
  return value < 100 ? value.toFixed(1) : number(Math.round(value));
}

function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}
