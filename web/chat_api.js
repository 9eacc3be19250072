/**
 * Calls of the documented HTTP API: the model list and the stream of a chat completion.
 *
 * Every failure, whatever its cause, leaves as one `ApiError` with a message a person can read.
 * Knows no page. Source: the HTTP documentation (docs/http.md).
 */

import { EventStreamParser } from "./event_stream.js";

export class ApiError extends Error {
  /**
   * @param {string} message what the server said, or what happened to the connection
   * @param {{status?: number, code?: string, param?: string, retryAfterS?: number, requestId?: string}} facts
   */
  constructor(message, { status = 0, code = "", param = "", retryAfterS = 0, requestId = "" } = {}) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, code, param, retryAfterS, requestId });
  }
}

/**
 * Describe the loaded model.
 *
 * @param {string} key API key, empty for none
 * @returns {Promise<object>} first entry of the model list
 */
export async function loadedModel(key) {
  const response = await call("/v1/models", { headers: headersFor(key) });
  const list = await response.json().catch(() => null);
  const model = list?.data?.[0];
  if (!model) throw new ApiError("The server names no model.", { code: "no_model" });
  return model;
}

/**
 * Stream a chat completion.
 *
 * @param {object} body request body; `stream` must be true
 * @param {string} key API key, empty for none
 * @param {AbortSignal} signal ends the request on both sides
 * @yields {object} chunks in order; returns only after a chunk with a finish reason
 */
export async function* streamChat(body, key, signal) {
  const response = await call("/v1/chat/completions", {
    method: "POST",
    headers: { ...headersFor(key), "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  let isFinished = false;
  for await (const data of eventData(response)) {
    if (data === "[DONE]") break;
    const chunk = parseChunk(data);
    if (chunk.error) throw errorOf(chunk, response);
    isFinished ||= Boolean(chunk.choices?.[0]?.finish_reason);
    yield chunk;
  }
  if (!isFinished) {
    throw new ApiError("The connection ended before the answer was complete.", {
      code: "incomplete_stream",
    });
  }
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (cause) {
    if (options.signal?.aborted) throw cause;
    throw new ApiError("The server cannot be reached. Is it still running?", { code: "network" });
  }
  if (response.ok) return response;
  throw errorOf(await response.json().catch(() => ({})), response);
}

function headersFor(key) {
  return key === "" ? {} : { Authorization: `Bearer ${key}` };
}

async function* eventData(response) {
  const parser = new EventStreamParser();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await readNext(reader);
      if (done) return;
      for (const event of parser.push(value)) yield event.data;
    }
  } finally {
    // Leaving early, for whatever reason, must also end the request on the server.
    await reader.cancel().catch(() => undefined);
  }
}

async function readNext(reader) {
  try {
    return await reader.read();
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new ApiError("The connection to the server broke.", { code: "network" });
  }
}

function parseChunk(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent something that is not JSON.", { code: "bad_stream" });
  }
}

function errorOf(body, response) {
  const error = body.error ?? {};
  const hasStatus = !response.ok;
  const fallback = hasStatus ? `The server answered with status ${response.status}.` : "Unknown error.";
  return new ApiError(error.message || fallback, {
    status: hasStatus ? response.status : 0,
    code: error.code ?? "",
    param: error.param ?? "",
    retryAfterS: Number(response.headers.get("retry-after")) || 0,
    requestId: response.headers.get("x-request-id") ?? "",
  });
}
