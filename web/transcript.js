/**
 * The messages of the shown conversation, in order, and where they are scrolled to.
 */

import { AnswerView } from "./answer_view.js";
import { QuestionView } from "./question_view.js";

/** Distance from the end, in pixels, within which new text keeps the end in view. */
const NEAR_END = 80;

export class Transcript {
  #scroller;
  #list;
  #toEnd;
  #actions;
  #views = new Map();
  #waiting = new Set();
  #isFollowing = true;

  /**
   * @param {{scroller: HTMLElement, list: HTMLElement, toEnd: HTMLElement}} places
   * @param {object} actions see `AnswerView` and `QuestionView`
   */
  constructor({ scroller, list, toEnd }, actions) {
    this.#scroller = scroller;
    this.#list = list;
    this.#toEnd = toEnd;
    this.#actions = actions;
    scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
    toEnd.addEventListener("click", () => this.#scrollToEnd());
  }

  /** Show these messages and nothing else. */
  show(messages) {
    const gone = [...this.#views.keys()].filter((message) => !messages.includes(message));
    for (const message of gone) {
      this.#views.get(message).element.remove();
      this.#views.delete(message);
    }
    this.#list.append(...messages.map((message) => this.#viewOf(message).element));
    this.#scrollToEnd();
  }

  /** Bring one message up to date at the next frame; nothing when it is not shown. */
  refresh(message) {
    if (this.#waiting.size === 0) requestAnimationFrame(() => this.#refreshWaiting());
    this.#waiting.add(message);
  }

  #refreshWaiting() {
    for (const message of this.#waiting) this.#views.get(message)?.refresh();
    this.#waiting.clear();
    if (this.#isFollowing) this.#scrollToEnd();
    else this.#noteScroll();
  }

  #viewOf(message) {
    let view = this.#views.get(message);
    if (!view) {
      const isQuestion = message.role === "user";
      view = isQuestion ? new QuestionView(message, this.#actions) : new AnswerView(message, this.#actions);
      this.#views.set(message, view);
    }
    return view;
  }

  #noteScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    this.#isFollowing = scrollHeight - scrollTop - clientHeight < NEAR_END;
    this.#toEnd.hidden = this.#isFollowing;
  }

  #scrollToEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#isFollowing = true;
    this.#toEnd.hidden = true;
  }
}
