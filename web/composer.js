/**
 * The form in which a message is written: text, attached images, send and stop.
 *
 * Decides nothing about the conversation; hands `{text, images}` to its owner.
 */

import { iconButton, element } from "./elements.js";
import { imageFiles, readImage, thumbnail } from "./images.js";

const HIGHEST_PIXELS = 260;

export class Composer {
  #form = document.getElementById("composer");
  #field = document.getElementById("prompt");
  #attach = document.getElementById("attach");
  #files = document.getElementById("image-files");
  #attachments = document.getElementById("attachments");
  #send = document.getElementById("send");
  #stop = document.getElementById("stop");
  #think = document.getElementById("think");
  #images = [];
  #isRunning = false;
  #hasVision = false;
  #owner;

  /**
   * @param {{send: Function, stop: Function, think: Function, notify: Function}} owner what happens
   *   with a message, a stop, a change of the thinking switch, and a problem worth telling
   */
  constructor(owner) {
    this.#owner = owner;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#field.addEventListener("input", () => this.#onInput());
    this.#field.addEventListener("paste", (event) => this.#takeFrom(event, event.clipboardData));
    this.#stop.addEventListener("click", () => owner.stop());
    this.#think.addEventListener("click", () => owner.think(!this.#isPressed()));
    this.#attach.addEventListener("click", () => this.#files.click());
    this.#files.addEventListener("change", () => {
      this.#add(Array.from(this.#files.files));
      this.#files.value = "";
    });
    const main = this.#form.closest("main");
    main.addEventListener("dragover", (event) => event.preventDefault());
    main.addEventListener("drop", (event) => this.#takeFrom(event, event.dataTransfer));
    this.#onInput();
  }

  /** Go to the text; not on a touch screen, where that would open the keyboard. */
  focus() {
    if (!isTouch()) this.#field.focus();
  }

  /** Whether the shown conversation is being answered. */
  setRunning(isRunning) {
    const hadFocus = [this.#send, this.#stop].includes(document.activeElement);
    this.#isRunning = isRunning;
    this.#send.hidden = isRunning;
    this.#stop.hidden = !isRunning;
    if (hadFocus) (isRunning ? this.#stop : this.#field).focus();
  }

  /** Offer what the model can do. */
  setCapabilities({ hasVision, hasThinking }) {
    this.#hasVision = hasVision;
    this.#attach.hidden = !hasVision;
    this.#think.hidden = !hasThinking;
  }

  setThinking(isThinking) {
    this.#think.setAttribute("aria-pressed", String(isThinking));
  }

  #isPressed() {
    return this.#think.getAttribute("aria-pressed") === "true";
  }

  #onKey(event) {
    const isPlainEnter = event.key === "Enter" && !event.shiftKey && !event.isComposing;
    // On a touch keyboard, Enter is the only way to a new line.
    if (!isPlainEnter || (isTouch() && !event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    this.#submit();
  }

  #onInput() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${Math.min(this.#field.scrollHeight, HIGHEST_PIXELS)}px`;
    this.#send.disabled = this.#field.value.trim() === "" && this.#images.length === 0;
  }

  #submit() {
    if (this.#isRunning || this.#send.disabled) return;
    this.#owner.send({ text: this.#field.value.trim(), images: this.#images });
    this.#field.value = "";
    this.#images = [];
    this.#showImages();
    this.focus();
  }

  #takeFrom(event, transfer) {
    const files = imageFiles(transfer);
    if (event.type === "drop") event.preventDefault();
    if (files.length === 0) return;
    event.preventDefault();
    if (this.#hasVision) this.#add(files);
    else this.#owner.notify("This model cannot see images.");
  }

  async #add(files) {
    for (const file of files) {
      try {
        this.#images.push(await readImage(file));
      } catch (error) {
        this.#owner.notify(error.message);
      }
    }
    this.#showImages();
  }

  #showImages() {
    const items = this.#images.map((image, index) => {
      const remove = iconButton("close", `Remove ${image.name}`, () => {
        this.#images.splice(index, 1);
        this.#showImages();
        this.focus();
      });
      return element("li", {}, thumbnail(image), remove);
    });
    this.#attachments.replaceChildren(...items);
    this.#attachments.hidden = items.length === 0;
    this.#onInput();
  }
}

function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}
