import { crc32, deflateSync } from "node:zlib";
import type { Browser } from "playwright-core";

/** A picture with at most 256 colours, as PNG: a third of what a browser writes, and no dependency for it. */

const COLOURS = 256;

interface Indexed {
  width: number;
  height: number;
  /** Three bytes a colour. */
  palette: number[];
  /** One byte a pixel, base64. */
  pixels: string;
}

/** @param png as a browser took it */
export async function indexed(browser: Browser, png: Buffer): Promise<Buffer> {
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    const picture = await page.evaluate(reduce, {
      url: `data:image/png;base64,${png.toString("base64")}`,
      most: COLOURS,
    });
    return encode(picture);
  } finally {
    await context.close();
  }
}

/** Runs in the browser, which can read PNG: the colours that are there most often, and for each pixel the nearest. */
async function reduce({ url, most }: { url: string; most: number }): Promise<Indexed> {
  const bitmap = await createImageBitmap(await (await fetch(url)).blob());
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height).getContext("2d");
  if (canvas === null) throw new Error("this browser has no canvas");
  canvas.drawImage(bitmap, 0, 0);
  const { data } = canvas.getImageData(0, 0, width, height);
  const colourAt = (at: number) => ((data[at] ?? 0) << 16) | ((data[at + 1] ?? 0) << 8) | (data[at + 2] ?? 0);
  const often = new Map<number, number>();
  for (let at = 0; at < data.length; at += 4) often.set(colourAt(at), (often.get(colourAt(at)) ?? 0) + 1);
  const chosen = [...often].sort(([a, n], [b, m]) => m - n || a - b).slice(0, most);
  const kept = chosen.map(([colour]) => colour);
  const nearest = new Map(kept.map((colour, index) => [colour, index]));
  const indexOf = (colour: number): number => {
    const known = nearest.get(colour);
    if (known !== undefined) return known;
    const far = (other: number) =>
      ((colour >> 16) - (other >> 16)) ** 2 +
      (((colour >> 8) & 255) - ((other >> 8) & 255)) ** 2 +
      ((colour & 255) - (other & 255)) ** 2;
    const index = kept.reduce((best, other, at) => (far(other) < far(kept[best] ?? 0) ? at : best), 0);
    nearest.set(colour, index);
    return index;
  };
  let text = "";
  for (let at = 0; at < data.length; at += 4) text += String.fromCharCode(indexOf(colourAt(at)));
  const palette = kept.flatMap((colour) => [colour >> 16, (colour >> 8) & 255, colour & 255]);
  return { width, height, palette, pixels: btoa(text) };
}

function encode({ width, height, palette, pixels }: Indexed): Buffer {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  // Eight bits a pixel, by a palette.
  header.set([8, 3, 0, 0, 0], 8);
  const bytes = Buffer.from(pixels, "base64");
  // Each row begins with its filter: none.
  const rows = Array.from({ length: height }, (_, row) =>
    Buffer.concat([Buffer.from([0]), bytes.subarray(row * width, (row + 1) * width)]),
  );
  return Buffer.concat([
    Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
    chunk("IHDR", header),
    chunk("PLTE", Buffer.from(palette)),
    chunk("IDAT", deflateSync(Buffer.concat(rows), { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

function chunk(type: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(type, "latin1"), data]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, sum]);
}
