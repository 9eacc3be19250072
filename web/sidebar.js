/**
 * The list of conversations, and the drawer it lives in on a narrow screen.
 */

import { element } from "./elements.js";

const NARROW = "(max-width: 800px)";

export class Sidebar {
  #panel = document.getElementById("sidebar");
  #main = document.querySelector("main");
  #list = document.getElementById("conversations");
  #scrim = document.getElementById("scrim");
  #opener = document.getElementById("open-sidebar");
  #narrow = matchMedia(NARROW);
  #onSelect;

  /** @param {{onSelect: Function, onNew: Function}} listeners */
  constructor({ onSelect, onNew }) {
    this.#onSelect = onSelect;
    document.getElementById("new-conversation").addEventListener("click", () => {
      this.close();
      onNew();
    });
    // First close the drawer, so that the focus returns to its opener after the dialog.
    document.getElementById("open-settings").addEventListener("click", () => this.close(), true);
    this.#opener.addEventListener("click", () => this.#setOpen(true));
    document.getElementById("close-sidebar").addEventListener("click", () => this.close());
    this.#scrim.addEventListener("click", () => this.close());
    this.#narrow.addEventListener("change", () => this.#setOpen(false));
    this.#panel.addEventListener("keydown", (event) => this.#onKey(event));
    this.#setOpen(false);
  }

  /** Show the entries of the list; `currentId` is the open one. */
  show(entries, currentId) {
    const items = entries.map(({ id, title }) => {
      const isCurrent = id === currentId;
      const button = element(
        "button",
        { type: "button", class: "entry", "aria-current": isCurrent ? "true" : null, title },
        title,
      );
      button.addEventListener("click", () => {
        this.close();
        this.#onSelect(id);
      });
      return element("li", {}, button);
    });
    this.#list.replaceChildren(...items);
  }

  close() {
    if (this.#panel.classList.contains("open")) this.#setOpen(false);
  }

  #setOpen(isOpen) {
    const isNarrow = this.#narrow.matches;
    const wasOpen = this.#panel.classList.contains("open");
    this.#panel.classList.toggle("open", isOpen);
    this.#scrim.hidden = !isOpen;
    this.#opener.setAttribute("aria-expanded", String(isOpen));
    this.#panel.inert = isNarrow && !isOpen;
    this.#main.inert = isNarrow && isOpen;
    if (isOpen) document.getElementById("new-conversation").focus();
    else if (wasOpen) this.#opener.focus();
  }

  #onKey(event) {
    if (event.key === "Escape" && this.#panel.classList.contains("open")) {
      event.preventDefault();
      this.close();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const entries = Array.from(this.#list.querySelectorAll(".entry"));
    const index = entries.indexOf(document.activeElement);
    if (step === undefined || index < 0) return;
    event.preventDefault();
    entries[Math.min(entries.length - 1, Math.max(0, index + step))].focus();
  }
}
