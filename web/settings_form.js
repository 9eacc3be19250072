/**
 * The settings dialog: shows settings, reads them back, and keeps them as they change.
 */

import { element } from "./elements.js";
import { NUMBER_FIELDS, defaultSettings, loadKey, saveKey } from "./settings.js";

/** Names of presets in the model list -> names of the fields here. */
const PRESET_FIELDS = ["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"];

export class SettingsForm {
  #dialog = document.getElementById("settings");
  #form = document.getElementById("settings-form");
  /** Sampling presets of the model, by thinking and non_thinking. */
  #presets = {};
  #settings;
  #onChange;
  #onKey;

  /**
   * @param {object} settings changed in place
   * @param {{onChange: Function, onKey: Function}} listeners called after settings or key changed
   */
  constructor(settings, { onChange, onKey }) {
    this.#settings = settings;
    this.#onChange = onChange;
    this.#onKey = onKey;
    document.getElementById("open-settings").addEventListener("click", () => this.open());
    document.getElementById("reset-settings").addEventListener("click", () => this.#reset());
    this.#form.addEventListener("change", (event) => this.#take(event.target));
    // A click on the backdrop hits the dialog itself.
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
  }

  /** Open the dialog, at a field when one is named. */
  open(fieldName = null) {
    this.show();
    if (!this.#dialog.open) this.#dialog.showModal();
    if (fieldName !== null) this.#form.elements.namedItem(fieldName).focus();
  }

  /** Bring the fields up to date with the settings. */
  show() {
    const fields = this.#form.elements;
    for (const name of NUMBER_FIELDS) fields.namedItem(name).value = this.#settings[name] ?? "";
    fields.namedItem("system").value = this.#settings.system;
    fields.namedItem("is_thinking").checked = this.#settings.isThinking;
    fields.namedItem("reasoning_effort").value = this.#settings.reasoning_effort;
    fields.namedItem("api_key").value = loadKey(sessionStorage);
    this.#showDependence();
  }

  /** Show what the model offers: its efforts, and its presets as placeholders. */
  setModel(model) {
    const capabilities = model.capabilities ?? {};
    document.getElementById("thinking-settings").hidden = !capabilities.thinking;
    const efforts = capabilities.reasoning_efforts ?? [];
    const effort = this.#form.elements.namedItem("reasoning_effort");
    effort.closest("label").hidden = efforts.length === 0;
    const options = efforts.map((name) => element("option", { value: name }, name));
    effort.replaceChildren(element("option", { value: "" }, "default"), ...options);
    this.#presets = model.sampling_defaults ?? {};
    this.show();
  }

  #take(field) {
    if (field.name === "theme" || !field.checkValidity()) return;
    if (field.name === "api_key") {
      saveKey(sessionStorage, field.value.trim());
      this.#onKey();
      return;
    }
    if (NUMBER_FIELDS.includes(field.name)) {
      this.#settings[field.name] = field.value === "" ? null : field.valueAsNumber;
    } else if (field.name === "is_thinking") {
      this.#settings.isThinking = field.checked;
    } else {
      this.#settings[field.name] = field.value;
    }
    this.#showDependence();
    this.#onChange();
  }

  #showDependence() {
    const { isThinking } = this.#settings;
    this.#form.elements.namedItem("thinking_budget").disabled = !isThinking;
    this.#form.elements.namedItem("reasoning_effort").disabled = !isThinking;
    const preset = this.#presets[isThinking ? "thinking" : "non_thinking"] ?? {};
    for (const name of PRESET_FIELDS) {
      const value = preset[name];
      this.#form.elements.namedItem(name).placeholder = value === undefined ? "default" : String(value);
    }
  }

  #reset() {
    Object.assign(this.#settings, defaultSettings());
    this.show();
    this.#onChange();
  }
}
