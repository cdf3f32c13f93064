/** A line is longer than the reader takes. */
export class LineTooLong extends Error {}

/** The lines of a stream of bytes in UTF-8, without their ends. Lines end with LF, CR LF or, if asked, CR alone. */
export async function* lines(
  body: ReadableStream<Uint8Array>,
  most: number,
  alone: "lf" | "any" = "lf",
): AsyncGenerator<string, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder("utf-8");
  const end = alone === "any" ? /\r\n|\r|\n/g : /\r?\n/g;
  // The parts of the line that has not ended, and their length: joined once, so that a long line costs no square.
  let parts: string[] = [];
  let length = 0;
  let afterReturn = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      let text = done ? decoder.decode() : decoder.decode(value, { stream: true });
      if (afterReturn && text !== "") {
        // The LF of a CR LF whose CR ended the piece before.
        if (text.startsWith("\n")) text = text.slice(1);
        afterReturn = false;
      }
      let from = 0;
      end.lastIndex = 0;
      for (let found = end.exec(text); found !== null; found = end.exec(text)) {
        if (length + found.index - from > most) throw new LineTooLong();
        parts.push(text.slice(from, found.index));
        const line = parts.join("");
        yield alone === "lf" && line.endsWith("\r") ? line.slice(0, -1) : line;
        parts = [];
        length = 0;
        from = found.index + found[0].length;
        afterReturn = alone === "any" && found[0] === "\r" && from === text.length;
      }
      if (from < text.length) {
        const rest = text.slice(from);
        length += rest.length;
        if (length > most) throw new LineTooLong();
        parts.push(rest);
      }
      if (done) {
        if (length > 0) yield parts.join("");
        return;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
