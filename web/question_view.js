/**
 * One message of a person on the page: pictures, text as it was typed, and editing in place.
 */

import { copyButton, element, iconButton } from "./elements.js";
import { thumbnail } from "./images.js";

export class QuestionView {
  #question;
  #actions;
  #body = element("div", { class: "question-body" });

  /**
   * @param {object} question see `messages.js`
   * @param {{edit: Function}} actions `edit(question, text)` replaces it and asks again
   */
  constructor(question, actions) {
    this.#question = question;
    this.#actions = actions;
    this.element = element("article", { class: "message question", "aria-label": "You" }, this.#body);
    this.#show();
  }

  /** A question does not change while it is shown. */
  refresh() {}

  #show() {
    const { text, images } = this.#question;
    const pictures = element("div", { class: "thumbnails" }, ...images.map(thumbnail));
    pictures.hidden = images.length === 0;
    const bubble = element("div", { class: "bubble" }, text);
    bubble.hidden = text === "";
    const edit = iconButton("edit", "Edit message", () => this.#edit());
    const actions = element("div", { class: "actions", role: "group", "aria-label": "Message actions" });
    actions.append(copyButton("Copy message", () => text), edit);
    this.#body.replaceChildren(pictures, bubble, actions);
  }

  #edit() {
    const field = element("textarea", { "aria-label": "Edit your message", rows: "3" });
    field.value = this.#question.text;
    const close = () => {
      this.#show();
      this.#body.querySelector("[aria-label='Edit message']").focus();
    };
    const cancel = element("button", { type: "button", class: "button", on: { click: close } }, "Cancel");
    const send = element("button", { type: "submit", class: "button primary" }, "Send again");
    const form = element(
      "form",
      { class: "edit" },
      field,
      element("div", { class: "edit-actions" }, element("span", {}, "Later messages are replaced."), cancel, send),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#actions.edit(this.#question, field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.preventDefault();
        close();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.#body.replaceChildren(form);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}
