/**
 * Settings of the chat: what is kept, where, and which request fields they become.
 *
 * An empty value means "as the server does by default" and is not sent. The API key lives in session
 * storage only and never joins the other settings. Knows no page.
 */

const SETTINGS_KEY = "ninfer.settings";
const API_KEY_KEY = "ninfer.api_key";

/** Number settings, named like the request fields they become. */
export const NUMBER_FIELDS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "presence_penalty",
  "frequency_penalty",
  "seed",
  "max_completion_tokens",
  "thinking_budget",
];

const DEFAULTS = {
  system: "",
  isThinking: true,
  reasoning_effort: "",
  ...Object.fromEntries(NUMBER_FIELDS.map((name) => [name, null])),
};

export function loadSettings(storage) {
  let stored = null;
  try {
    stored = JSON.parse(storage.getItem(SETTINGS_KEY));
  } catch {
    // Not ours or damaged: the defaults are a usable answer.
  }
  const known = Object.entries(stored ?? {}).filter(([name]) => name in DEFAULTS);
  return { ...DEFAULTS, ...Object.fromEntries(known) };
}

export function saveSettings(storage, settings) {
  storage.setItem(SETTINGS_KEY, JSON.stringify(settings));
}

export function defaultSettings() {
  return { ...DEFAULTS };
}

export function loadKey(storage) {
  return storage.getItem(API_KEY_KEY) ?? "";
}

export function saveKey(storage, key) {
  if (key === "") storage.removeItem(API_KEY_KEY);
  else storage.setItem(API_KEY_KEY, key);
}

/**
 * Request fields of the settings.
 *
 * @param {object} settings as loaded
 * @param {object|null} model entry of the model list; null when it is not known
 */
export function requestFields(settings, model) {
  const fields = {};
  for (const name of NUMBER_FIELDS) {
    if (settings[name] !== null && name !== "thinking_budget") fields[name] = settings[name];
  }
  if (!model?.capabilities?.thinking) return fields;
  fields.enable_thinking = settings.isThinking;
  if (!settings.isThinking) return fields;
  if (settings.thinking_budget !== null) fields.thinking_budget = settings.thinking_budget;
  const efforts = model.capabilities.reasoning_efforts ?? [];
  if (efforts.includes(settings.reasoning_effort)) {
    fields.reasoning_effort = settings.reasoning_effort;
  }
  return fields;
}
