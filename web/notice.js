/**
 * Short notices at the lower edge of the page, which may offer one action such as undo.
 */

import { element } from "./elements.js";

const NOTICE_MS = 8000;

let hideTimer = 0;

/** Tell something in passing, with one action at most. */
export function notify(text, actionName = "", action = null) {
  const notice = document.getElementById("notice");
  const hide = () => {
    notice.hidden = true;
    notice.replaceChildren();
  };
  clearTimeout(hideTimer);
  notice.replaceChildren(element("span", {}, text));
  if (action !== null) {
    const run = { click: () => (hide(), action()) };
    notice.append(element("button", { type: "button", class: "button", on: run }, actionName));
  }
  notice.hidden = false;
  hideTimer = setTimeout(hide, NOTICE_MS);
}
