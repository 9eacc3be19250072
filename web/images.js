/**
 * Images a person attaches: reading, limiting their size, small pictures of them.
 *
 * Pictures are painted on canvases, because the page's security policy loads images from the server
 * only. Large ones are scaled down before they are sent and kept.
 */

import { element } from "./elements.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const LONGEST_SIDE = 2048;
const LARGEST_BYTES = 3 << 20;
const THUMBNAIL_PIXELS = 192;

/**
 * Read an image file.
 *
 * @returns {Promise<{name: string, dataUrl: string}>}
 * @throws {Error} with a message for the person
 */
export async function readImage(file) {
  if (!TYPES.includes(file.type)) throw new Error(`${file.name} is not a PNG, JPEG, WebP, GIF or BMP.`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} cannot be read as an image.`);
  }
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const isFine = scale === 1 && file.size <= LARGEST_BYTES;
  const dataUrl = isFine ? await dataUrlOf(file) : paint(bitmap, scale).toDataURL("image/jpeg", 0.9);
  bitmap.close();
  return { name: file.name, dataUrl };
}

/** Image files among the items of a paste or a drop. */
export function imageFiles(transfer) {
  return Array.from(transfer?.files ?? []).filter((file) => file.type.startsWith("image/"));
}

/** A small picture of an attached image; its name where the data were not kept. */
export function thumbnail({ name, dataUrl }) {
  if (dataUrl === null) return element("span", { class: "thumbnail missing" }, `${name} (not kept)`);
  const canvas = element("canvas", { class: "thumbnail", role: "img", "aria-label": name, title: name });
  canvas.width = canvas.height = THUMBNAIL_PIXELS;
  paintThumbnail(canvas, dataUrl);
  return canvas;
}

async function paintThumbnail(canvas, dataUrl) {
  try {
    const bitmap = await createImageBitmap(blobOf(dataUrl));
    const scale = Math.min(1, THUMBNAIL_PIXELS / Math.max(bitmap.width, bitmap.height));
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
  } catch {
    // The name stays as the canvas' label; the picture itself is only decoration.
    canvas.classList.add("missing");
  }
}

function paint(bitmap, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  // JPEG has no transparency; the server composites on white as well.
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function dataUrlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error(`${file.name} cannot be read.`)));
    reader.readAsDataURL(file);
  });
}

function blobOf(dataUrl) {
  const [head, body] = dataUrl.split(",", 2);
  const bytes = Uint8Array.from(atob(body), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type: head.slice(5).split(";", 1)[0] });
}
