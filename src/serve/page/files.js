// Files that are attached to a message: images as data: URLs, text and code as text, PDF by its text or as images of its pages.
import { libraries } from "/page/libraries.js";
import { script } from "/page/markdown.js";

const IMAGES = ["image/jpeg", "image/png", "image/webp", "image/gif"]; // that the server reads
const IMAGE_BYTES = 1 << 20, IMAGE_SIDE = 1568, TEXT_BYTES = 4 << 20, PDF_BYTES = 64 << 20, PDF_PAGES = 32;

function asUrl(blob) {
  return new Promise((yes, no) => {
    const r = new FileReader();
    r.onload = () => yes(r.result);
    r.onerror = () => no(r.error);
    r.readAsDataURL(blob);
  });
}

// What the server does not read, or what is large, is drawn again as JPEG.
async function image(file) {
  if (IMAGES.includes(file.type) && file.size <= IMAGE_BYTES) return asUrl(file);
  const bitmap = await createImageBitmap(file), scale = Math.min(1, IMAGE_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas"), draw = canvas.getContext("2d");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  draw.fillStyle = "white"; // behind transparent pixels
  draw.fillRect(0, 0, canvas.width, canvas.height);
  draw.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.9);
}

// The image of a page, its longer side as long as that of other images.
async function pageImage(page) {
  const plain = page.getViewport({ scale: 1 }), viewport = page.getViewport({ scale: IMAGE_SIDE / Math.max(plain.width, plain.height) });
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(viewport.width);
  canvas.height = Math.round(viewport.height);
  await page.render({ canvasContext: canvas.getContext("2d"), viewport }).promise;
  return canvas.toDataURL("image/jpeg", 0.9);
}

// sees: the model takes images; pages: they are wanted. Without text in it, there is no other way.
async function pdf(file, { sees, pages: wanted }) {
  if (!libraries.pdfWorker || !(await script("pdf"))) throw new Error("this program was built without a reader of PDF");
  const lib = window.pdfjsLib;
  lib.GlobalWorkerOptions.workerSrc = libraries.pdfWorker;
  const task = lib.getDocument({ data: new Uint8Array(await file.arrayBuffer()), isEvalSupported: false, useSystemFonts: true });
  try {
    const doc = await task.promise, pages = await Promise.all(Array.from({ length: doc.numPages }, (_, i) => doc.getPage(i + 1)));
    const texts = await Promise.all(pages.map(async (p) => (await p.getTextContent()).items.map((t) => t.str + (t.hasEOL ? "\n" : "")).join("")));
    const text = texts.join("\n\n").trim();
    if (!text && !sees) throw new Error("there is no text in it, only images, and this model sees none");
    if (text && !(sees && wanted)) return [{ kind: "pdf", text }];
    if (pages.length > PDF_PAGES) throw new Error(`it has ${pages.length} pages; at most ${PDF_PAGES} become images`);
    const out = [];
    for (const [i, p] of pages.entries()) out.push({ kind: "image", name: `${file.name}, page ${i + 1}`, url: await pageImage(p) });
    return out;
  } finally {
    task.destroy();
  }
}

async function plainText(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (bytes.includes(0)) throw new Error("it is neither an image, nor PDF, nor text");
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

// -> [{name, kind, size, url or text}]; an error says why not
export async function readFiles(file, options) {
  const base = { name: file.name || "file", size: file.size };
  const limit = (most) => {
    if (file.size > most) throw new Error(`it is larger than ${most >> 20} MiB`);
  };
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") return [{ ...base, kind: "image", url: await image(file) }];
  if (file.type === "application/pdf" || /\.pdf$/i.test(file.name)) {
    limit(PDF_BYTES);
    return (await pdf(file, options)).map((f) => ({ ...base, ...f }));
  }
  limit(TEXT_BYTES);
  return [{ ...base, kind: "text", text: await plainText(file) }];
}
