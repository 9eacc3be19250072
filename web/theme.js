/**
 * Light and dark: follows the system until a person chooses.
 *
 * A classic script in the head, so that the choice holds before the first paint. Owns the storage key
 * `ninfer.theme` and the attribute `data-theme` of the document.
 */

"use strict";

(() => {
  const KEY = "ninfer.theme";
  const THEMES = ["system", "light", "dark"];

  function stored() {
    const theme = localStorage.getItem(KEY);
    return THEMES.includes(theme) ? theme : "system";
  }

  function apply(theme) {
    if (theme === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
  }

  apply(stored());

  document.addEventListener("DOMContentLoaded", () => {
    const choices = document.querySelectorAll("input[name=theme]");
    for (const choice of choices) {
      choice.checked = choice.value === stored();
      choice.addEventListener("change", () => {
        localStorage.setItem(KEY, choice.value);
        apply(choice.value);
      });
    }
  });
})();
