// Files that are attached to a message: images as data: URLs, text and code as text, PDF by its text.
import { libraries } from "/page/libraries.js";
import { script } from "/page/markdown.js";

const IMAGES = ["image/jpeg", "image/png", "image/webp", "image/gif"]; // that the server reads
const IMAGE_BYTES = 1 << 20, IMAGE_SIDE = 1568, TEXT_BYTES = 4 << 20, PDF_BYTES = 64 << 20;

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

async function pdf(file) {
  if (!libraries.pdfWorker || !(await script("pdf"))) throw new Error("this program was built without a reader of PDF");
  const lib = window.pdfjsLib;
  lib.GlobalWorkerOptions.workerSrc = libraries.pdfWorker;
  const task = lib.getDocument({ data: new Uint8Array(await file.arrayBuffer()), isEvalSupported: false, disableFontFace: true, useSystemFonts: false });
  const doc = await task.promise, pages = [];
  try {
    for (let i = 1; i <= doc.numPages; i++) {
      const { items } = await (await doc.getPage(i)).getTextContent();
      pages.push(items.map((t) => t.str + (t.hasEOL ? "\n" : "")).join(""));
    }
  } finally {
    task.destroy();
  }
  const text = pages.join("\n\n").trim();
  if (!text) throw new Error("there is no text in it, only images");
  return text;
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

// -> {name, kind, size, url or text}; an error says why not
export async function readFile(file) {
  const base = { name: file.name || "file", size: file.size };
  const limit = (most) => {
    if (file.size > most) throw new Error(`it is larger than ${most >> 20} MiB`);
  };
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") return { ...base, kind: "image", url: await image(file) };
  if (file.type === "application/pdf" || /\.pdf$/i.test(file.name)) {
    limit(PDF_BYTES);
    return { ...base, kind: "pdf", text: await pdf(file) };
  }
  limit(TEXT_BYTES);
  return { ...base, kind: "text", text: await plainText(file) };
}
