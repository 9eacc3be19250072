/**
 * Parser of server-sent events, from bytes to events, for any split of the bytes.
 *
 * Knows nothing of HTTP or of what the data mean. Source: the server-sent events section of the HTML
 * standard (line ends LF, CR or CRLF; comments; several data lines; an event without its blank line
 * is discarded).
 */

export class EventStreamParser {
  #decoder = new TextDecoder("utf-8");
  #rest = "";
  #endedInReturn = false;
  #name = "";
  #data = [];

  /**
   * Take the next bytes.
   *
   * @param {Uint8Array} bytes any part of the stream, also half a character
   * @returns {{name: string, data: string}[]} events completed by these bytes, in order
   */
  push(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    // The CR before ended its line already; this LF belongs to it.
    if (this.#endedInReturn && text.startsWith("\n")) text = text.slice(1);
    this.#endedInReturn = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    lines[0] = this.#rest + lines[0];
    this.#rest = lines.pop();
    return lines.map((line) => this.#takeLine(line)).filter((event) => event !== null);
  }

  #takeLine(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.#data.push(value);
    if (field === "event") this.#name = value;
    return null;
  }

  #dispatch() {
    const event = { name: this.#name || "message", data: this.#data.join("\n") };
    const isEmpty = this.#data.length === 0;
    this.#name = "";
    this.#data = [];
    return isEmpty ? null : event;
  }
}
