/**
 * Conversations kept in this browser: one stored entry each, and an index for the list.
 *
 * Owns the keys `ninfer.conversations` and `ninfer.conversation.*` of the storage it is given; reads
 * the index anew on every change, so that two tabs do not undo each other. Knows no page.
 *
 * A conversation: {id, title, isNamed, createdMs, updatedMs, messages}.
 */

import { newId } from "./messages.js";

export const INDEX_KEY = "ninfer.conversations";
const ENTRY_PREFIX = "ninfer.conversation.";
const TITLE_CHARACTERS = 60;

export function newConversation(nowMs) {
  return {
    id: newId(),
    title: "New conversation",
    isNamed: false,
    createdMs: nowMs,
    updatedMs: nowMs,
    messages: [],
  };
}

/** Title out of the first question, unless a person named the conversation. */
export function titleOf(conversation) {
  if (conversation.isNamed) return conversation.title;
  const first = conversation.messages.find((message) => message.role === "user");
  const line = first?.text.trim().split("\n", 1)[0].trim() ?? "";
  if (line === "") return first ? "Image" : "New conversation";
  const characters = Array.from(line);
  if (characters.length <= TITLE_CHARACTERS) return line;
  return `${characters.slice(0, TITLE_CHARACTERS - 1).join("").trimEnd()}…`;
}

export class ConversationStore {
  #storage;

  /** @param {Storage} storage usually `localStorage` */
  constructor(storage) {
    this.#storage = storage;
  }

  /** Entries of the list, last changed first: {id, title, updatedMs}. */
  list() {
    const entries = this.#read(INDEX_KEY);
    if (!Array.isArray(entries)) return [];
    return entries.filter((entry) => entry?.id).sort((a, b) => b.updatedMs - a.updatedMs);
  }

  /** The conversation, or null. An answer that was cut off by leaving the page counts as stopped. */
  load(id) {
    const conversation = this.#read(ENTRY_PREFIX + id);
    if (!Array.isArray(conversation?.messages)) return null;
    for (const message of conversation.messages) {
      if (message.state === "running") message.state = "stopped";
    }
    return conversation;
  }

  /**
   * Keep a conversation.
   *
   * @returns {"kept"|"kept-without-images"|"refused"} what the browser had room for
   */
  save(conversation) {
    conversation.title = titleOf(conversation);
    if (this.#keep(conversation)) return "kept";
    if (this.#keep(withoutImages(conversation))) return "kept-without-images";
    return "refused";
  }

  remove(id) {
    this.#storage.removeItem(ENTRY_PREFIX + id);
    this.#write(
      INDEX_KEY,
      this.list().filter((entry) => entry.id !== id),
    );
  }

  #keep(conversation) {
    const { id, title, updatedMs } = conversation;
    const others = this.list().filter((entry) => entry.id !== id);
    return (
      this.#write(ENTRY_PREFIX + id, conversation) &&
      this.#write(INDEX_KEY, [{ id, title, updatedMs }, ...others])
    );
  }

  #read(key) {
    try {
      return JSON.parse(this.#storage.getItem(key));
    } catch {
      return null;
    }
  }

  #write(key, value) {
    try {
      this.#storage.setItem(key, JSON.stringify(value));
      return true;
    } catch {
      // The quota is used up; the caller says so to the person.
      return false;
    }
  }
}

function withoutImages(conversation) {
  const messages = conversation.messages.map((message) =>
    message.images?.length
      ? { ...message, images: message.images.map((image) => ({ ...image, dataUrl: null })) }
      : message,
  );
  return { ...conversation, messages };
}
