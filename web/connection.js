/**
 * What is known of the server: asks for its model until it answers, and says so in the title bar.
 */

import { ApiError, loadedModel } from "./chat_api.js";

const RETRY_S = 3;

export class Connection {
  #badge = document.getElementById("model");
  #key;
  #onModel;
  #timer = 0;
  #attempt = 0;
  model = null;

  /** @param {{key: Function, onModel: Function}} owner */
  constructor({ key, onModel }) {
    this.#key = key;
    this.#onModel = onModel;
  }

  /** Ask now; repeats on its own while the server is away or still loading. */
  async check() {
    clearTimeout(this.#timer);
    const attempt = ++this.#attempt;
    try {
      const model = await loadedModel(this.#key());
      if (attempt !== this.#attempt) return;
      this.model = model;
      this.#show("ready", model.id, factsOf(model));
      this.#onModel(model);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (attempt === this.#attempt) this.#showProblem(error);
    }
  }

  #showProblem(error) {
    if (error.status === 401) {
      this.#show("problem", "API key needed", error.message);
      return;
    }
    const isLoading = error.code === "model_loading";
    this.#show(isLoading ? "waiting" : "problem", isLoading ? "Loading the model" : "Not connected", error.message);
    this.#timer = setTimeout(() => this.check(), (error.retryAfterS || RETRY_S) * 1000);
  }

  #show(state, text, title) {
    this.#badge.dataset.state = state;
    this.#badge.textContent = text;
    this.#badge.title = title;
  }
}

function factsOf(model) {
  const context = model.max_model_len ? `context ${model.max_model_len.toLocaleString("en-US")} tokens` : "";
  return [context, model.kv_dtype ? `KV cache ${model.kv_dtype}` : "", model.speculative ?? ""]
    .filter((fact) => fact && fact !== "none")
    .join(" · ");
}
