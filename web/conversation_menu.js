/**
 * What can be done with the shown conversation: rename, export, delete.
 */

import { fileName, offerFile, toJson, toMarkdown } from "./conversation_export.js";

/**
 * Connect the menu.
 *
 * @param {{current: Function, rename: Function, remove: Function}} owner
 */
export function connectMenu(owner) {
  const menu = document.getElementById("conversation-menu");
  const dialog = document.getElementById("rename");
  const field = document.getElementById("rename-title");
  const onClick = (id, action) =>
    document.getElementById(id).addEventListener("click", () => {
      menu.hidePopover();
      action(owner.current());
    });
  onClick("menu-rename", ({ title }) => {
    field.value = title;
    dialog.showModal();
    field.select();
  });
  onClick("menu-markdown", (conversation) =>
    offerFile(fileName(conversation.title, "md"), toMarkdown(conversation), "text/markdown"),
  );
  onClick("menu-json", (conversation) =>
    offerFile(fileName(conversation.title, "json"), toJson(conversation), "application/json"),
  );
  onClick("menu-delete", () => owner.remove());
  document.getElementById("rename-cancel").addEventListener("click", () => dialog.close());
  document.getElementById("rename-form").addEventListener("submit", () => {
    if (field.value.trim() !== "") owner.rename(field.value.trim());
  });
}
