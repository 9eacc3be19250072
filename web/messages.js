/**
 * Messages of a conversation: what they hold, how stream chunks add to an answer, what is sent.
 *
 * Pure functions over plain objects, so that they can be stored as they are. Knows neither the page
 * nor the network.
 *
 * A question: {id, role: "user", text, images: [{name, dataUrl|null}]}.
 * An answer: {id, role: "assistant", state, text, thinking, toolCalls: [{id, name, arguments}],
 * finish, progress, error, times: {sentMs, firstMs, thoughtMs, endMs}, usage, timings}; its state is
 * running, done, stopped or failed.
 */

/** A name that no other message or conversation has; works without a secure context. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newQuestion(text, images) {
  return { id: newId(), role: "user", text, images };
}

export function newAnswer(nowMs) {
  return {
    id: newId(),
    role: "assistant",
    state: "running",
    text: "",
    thinking: "",
    toolCalls: [],
    finish: null,
    progress: null,
    error: null,
    times: { sentMs: nowMs, firstMs: null, thoughtMs: null, endMs: null },
    usage: null,
    timings: null,
  };
}

/** Add one chunk of the stream to a running answer. */
export function applyChunk(answer, chunk, nowMs) {
  if (chunk.usage) answer.usage = chunk.usage;
  if (chunk.timings) answer.timings = chunk.timings;
  if (chunk.prompt_progress) answer.progress = chunk.prompt_progress;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  const hasOutput = Boolean(delta.reasoning_content || delta.content || delta.tool_calls?.length);
  if (hasOutput) answer.times.firstMs ??= nowMs;
  if (delta.role && !answer.progress) answer.progress = { processed: 0, total: 0 };
  if (delta.reasoning_content) answer.thinking += delta.reasoning_content;
  if (delta.content) answer.text += delta.content;
  for (const call of delta.tool_calls ?? []) addCall(answer.toolCalls, call);
  const hasLeftThinking = Boolean(delta.content || delta.tool_calls?.length || choice.finish_reason);
  if (answer.thinking && hasLeftThinking) answer.times.thoughtMs ??= nowMs;
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

/** Close a running answer; whatever had arrived stays. */
export function endAnswer(answer, state, nowMs, error = null) {
  answer.state = state;
  answer.error = error;
  answer.progress = null;
  answer.times.endMs = nowMs;
  if (answer.thinking) answer.times.thoughtMs ??= nowMs;
}

/** Messages of the request: system text first, answers that hold nothing left out. */
export function requestMessages(messages, systemText) {
  const system = systemText.trim() === "" ? [] : [{ role: "system", content: systemText }];
  const turns = messages.filter((message) => message.role === "user" || hasSubstance(message));
  return [...system, ...turns.map((turn) => (turn.role === "user" ? question(turn) : reply(turn)))];
}

/** Figures of a finished answer; null where they are not known. */
export function figures(answer) {
  const { usage, timings, times } = answer;
  const rate = timings?.predicted_per_second || localRate(answer);
  return {
    tokensPerSecond: rate || null,
    firstTokenS: times.firstMs === null ? null : (times.firstMs - times.sentMs) / 1000,
    promptTokens: usage?.prompt_tokens ?? null,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n ?? null,
    answerTokens: usage?.completion_tokens ?? timings?.predicted_n ?? null,
    thinkingTokens: usage?.completion_tokens_details?.reasoning_tokens ?? null,
  };
}

function localRate({ usage, times }) {
  const spanMs = (times.endMs ?? 0) - (times.firstMs ?? 0);
  const intervals = (usage?.completion_tokens ?? 0) - 1;
  return times.firstMs !== null && intervals > 0 && spanMs > 0 ? (intervals * 1000) / spanMs : 0;
}

function addCall(calls, delta) {
  const known = (calls[delta.index] ??= { id: "", name: "", arguments: "" });
  if (delta.id) known.id = delta.id;
  if (delta.function?.name) known.name = delta.function.name;
  known.arguments += delta.function?.arguments ?? "";
}

function hasSubstance(answer) {
  return answer.text !== "" || completeCalls(answer).length > 0;
}

/** Calls whose arguments arrived whole; a cut one cannot be sent back. */
function completeCalls(answer) {
  return answer.toolCalls.filter((call) => call && isObjectText(call.arguments));
}

function isObjectText(text) {
  if (text === "") return true;
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

function question({ text, images }) {
  if (images.length === 0) return { role: "user", content: text };
  const pictures = images.map(({ dataUrl }) =>
    dataUrl === null
      ? { type: "text", text: "[an image that is no longer available]\n" }
      : { type: "image_url", image_url: { url: dataUrl } },
  );
  return { role: "user", content: [...pictures, { type: "text", text }] };
}

function reply(answer) {
  const message = { role: "assistant", content: answer.text };
  if (answer.thinking) message.reasoning_content = answer.thinking;
  const calls = completeCalls(answer);
  if (calls.length > 0) {
    message.tool_calls = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}
