/**
 * A conversation as a file: Markdown to read, JSON to keep everything. Pure, apart from `offerFile`.
 */

/** The conversation as Markdown; thinking is quoted, calls are fenced. */
export function toMarkdown(conversation) {
  const parts = conversation.messages.map((message) =>
    message.role === "user" ? questionText(message) : answerText(message),
  );
  return `# ${conversation.title}\n\n${parts.join("\n\n")}\n`;
}

export function toJson(conversation) {
  return `${JSON.stringify(conversation, null, 2)}\n`;
}

/** A file name without characters that a file system could refuse. */
export function fileName(title, suffix) {
  const stem = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");
  return `${stem.slice(0, 50) || "conversation"}.${suffix}`;
}

/** Let the browser download a text. */
export function offerFile(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function questionText({ text, images }) {
  const pictures = images.map((image) => `*(image: ${image.name})*`);
  return ["## You", ...pictures, text].join("\n\n");
}

function answerText({ thinking, text, toolCalls, error }) {
  const parts = ["## Answer"];
  if (thinking) parts.push(thinking.replace(/^/gm, "> "));
  if (text) parts.push(text);
  for (const call of toolCalls) parts.push(`\`\`\`json ${call.name}\n${call.arguments}\n\`\`\``);
  if (error) parts.push(`*(failed: ${error.message})*`);
  return parts.join("\n\n");
}
