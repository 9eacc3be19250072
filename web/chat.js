/**
 * The chat page: owns the shown conversation, the settings and the answers that are running.
 *
 * Everything it shows belongs to the modules it connects. An answer goes on when another conversation
 * is opened; stopping or deleting its own ends it.
 */

import { ApiError, streamChat } from "./chat_api.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { connectMenu } from "./conversation_menu.js";
import { ConversationStore, INDEX_KEY, newConversation } from "./conversations.js";
import { applyChunk, endAnswer, newAnswer, newQuestion, requestMessages } from "./messages.js";
import { notify } from "./notice.js";
import { loadKey, loadSettings, requestFields, saveSettings } from "./settings.js";
import { SettingsForm } from "./settings_form.js";
import { Sidebar } from "./sidebar.js";
import { Transcript } from "./transcript.js";

const byId = (id) => document.getElementById(id);

class ChatPage {
  #store = new ConversationStore(localStorage);
  #settings = loadSettings(localStorage);
  /** Conversation id -> {conversation, answer, controller}. */
  #runs = new Map();
  #conversation = newConversation(Date.now());
  #transcript = new Transcript(
    { scroller: byId("scroller"), list: byId("messages"), toEnd: byId("to-end") },
    {
      regenerate: (answer) => this.#askAgain(answer, 0),
      edit: (question, text) => this.#edit(question, text),
      openSettings: () => this.#form.open("api_key"),
    },
  );
  #connection = new Connection({
    key: () => loadKey(sessionStorage),
    onModel: (model) => this.#takeModel(model),
  });
  #composer = new Composer({
    send: (message) => this.#send(message),
    stop: () => this.#stop(),
    think: (isThinking) => this.#changeSettings({ isThinking }),
    notify,
  });
  #form = new SettingsForm(this.#settings, {
    onChange: () => this.#changeSettings({}),
    onKey: () => this.#connection.check(),
  });
  #sidebar = new Sidebar({ onSelect: (id) => this.#open(id), onNew: () => this.#startNew() });

  start() {
    connectMenu({
      current: () => this.#conversation,
      rename: (title) => this.#rename(title),
      remove: () => this.#remove(),
    });
    addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("pagehide", () => this.#runs.forEach((run) => this.#store.save(run.conversation)));
    addEventListener("storage", (event) => {
      if (event.key === INDEX_KEY) this.#showList();
    });
    this.#composer.setThinking(this.#settings.isThinking);
    const [latest] = this.#store.list();
    if (latest) this.#open(latest.id);
    else this.#startNew();
    this.#connection.check();
  }

  // What a person does.

  #send({ text, images }) {
    this.#conversation.messages.push(newQuestion(text, images));
    this.#answer();
  }

  /** Drop everything from a message on (and `offset` messages after it), and answer again. */
  #askAgain(message, offset) {
    const index = this.#conversation.messages.indexOf(message);
    if (index < 0) return;
    this.#stop();
    this.#conversation.messages.length = index + offset;
    this.#composer.focus();
    this.#answer();
  }

  #edit(question, text) {
    const index = this.#conversation.messages.indexOf(question);
    if (text.trim() === "" && question.images.length === 0) return;
    this.#conversation.messages[index] = newQuestion(text.trim(), question.images);
    this.#askAgain(this.#conversation.messages[index], 1);
  }

  #stop() {
    this.#runs.get(this.#conversation.id)?.controller.abort();
  }

  #open(id) {
    const conversation = this.#runs.get(id)?.conversation ?? this.#store.load(id);
    if (conversation === null) {
      this.#store.remove(id);
      this.#startNew();
      return;
    }
    this.#conversation = conversation;
    this.#show();
    this.#composer.focus();
  }

  #startNew() {
    this.#conversation = newConversation(Date.now());
    this.#show();
    this.#composer.focus();
  }

  #rename(title) {
    Object.assign(this.#conversation, { title, isNamed: true });
    this.#keep(this.#conversation);
    this.#show();
  }

  #remove() {
    const removed = this.#conversation;
    this.#stop();
    this.#store.remove(removed.id);
    this.#startNew();
    notify(`Deleted “${removed.title}”.`, "Undo", () => {
      this.#keep(removed);
      this.#open(removed.id);
    });
  }

  #onKey(event) {
    const isTyping = event.target.closest?.("input, textarea, select, dialog") !== null;
    // What is open on top of the page takes Escape for itself.
    const isCovered = document.querySelector("dialog[open], :popover-open") !== null;
    if (event.key === "Escape" && !event.defaultPrevented && !isCovered) {
      this.#stop();
    } else if (event.key === "/" && !isTyping) {
      event.preventDefault();
      this.#composer.focus();
    } else if (event.altKey && event.code === "KeyN") {
      event.preventDefault();
      this.#startNew();
    } else if (event.altKey && event.code === "KeyS") {
      event.preventDefault();
      this.#form.open();
    }
  }

  // What a server does.

  async #answer() {
    const conversation = this.#conversation;
    const body = this.#body(conversation.messages);
    const answer = newAnswer(Date.now());
    const controller = new AbortController();
    conversation.messages.push(answer);
    this.#runs.set(conversation.id, { conversation, answer, controller });
    this.#keep(conversation);
    this.#show();
    this.#announce("Answer started.");
    await this.#follow(answer, body, controller.signal);
    // A later run of the same conversation may have taken its place.
    if (this.#runs.get(conversation.id)?.answer === answer) this.#runs.delete(conversation.id);
    if (!conversation.messages.includes(answer)) return;
    if (this.#store.load(conversation.id) !== null) this.#keep(conversation);
    this.#transcript.refresh(answer);
    if (conversation === this.#conversation) this.#showState();
    this.#announce({ done: "Answer complete.", stopped: "Answer stopped.", failed: "" }[answer.state]);
  }

  async #follow(answer, body, signal) {
    try {
      for await (const chunk of streamChat(body, loadKey(sessionStorage), signal)) {
        applyChunk(answer, chunk, Date.now());
        this.#transcript.refresh(answer);
      }
      endAnswer(answer, "done", Date.now());
    } catch (error) {
      if (signal.aborted) {
        endAnswer(answer, "stopped", Date.now());
      } else if (error instanceof ApiError) {
        endAnswer(answer, "failed", Date.now(), { ...error, message: error.message });
        if (error.status === 401 || error.code === "network") this.#connection.check();
      } else {
        endAnswer(answer, "failed", Date.now(), { message: `The page failed: ${error.message}` });
        throw error;
      }
    }
  }

  #body(messages) {
    return {
      model: this.#connection.model?.id ?? "default",
      messages: requestMessages(messages, this.#settings.system),
      stream: true,
      stream_options: { include_usage: true },
      return_progress: true,
      ...requestFields(this.#settings, this.#connection.model),
    };
  }

  #takeModel(model) {
    const { vision = false, thinking = false } = model.capabilities ?? {};
    this.#composer.setCapabilities({ hasVision: vision, hasThinking: thinking });
    this.#form.setModel(model);
    this.#showWelcome();
  }

  #changeSettings(change) {
    Object.assign(this.#settings, change);
    saveSettings(localStorage, this.#settings);
    this.#composer.setThinking(this.#settings.isThinking);
  }

  #keep(conversation) {
    conversation.updatedMs = Date.now();
    const outcome = this.#store.save(conversation);
    if (outcome === "kept-without-images") notify("The browser's storage is full: images were not kept.");
    if (outcome === "refused") notify("The browser's storage is full: this conversation is not kept.");
    this.#showList();
  }

  // What is shown.

  #show() {
    this.#transcript.show(this.#conversation.messages);
    this.#showList();
    this.#showState();
    this.#showWelcome();
  }

  #showList() {
    this.#sidebar.show(this.#store.list(), this.#conversation.id);
  }

  #showState() {
    byId("title").textContent = this.#conversation.title;
    document.title = `${this.#conversation.title} · ninfer`;
    byId("open-menu").hidden = this.#conversation.messages.length === 0;
    this.#composer.setRunning(this.#runs.has(this.#conversation.id));
  }

  #showWelcome() {
    byId("welcome").hidden = this.#conversation.messages.length > 0;
    const model = this.#connection.model;
    byId("welcome-title").textContent = model === null ? "Ask anything" : `Ask ${model.id}`;
  }

  #announce(text) {
    byId("announcement").textContent = text;
  }
}

new ChatPage().start();
