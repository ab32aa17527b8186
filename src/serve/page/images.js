// Images of the message that is being written: attached, pasted or dropped. Each becomes a data: URL. What the server does
// not read, or what is large, is drawn again as JPEG, since conversations are kept in this browser's small storage.
const READ = ["image/jpeg", "image/png", "image/webp", "image/gif"];
const BYTES = 1 << 20, SIDE = 1568;

function readAs(blob) {
  return new Promise((done, fail) => {
    const r = new FileReader();
    r.onload = () => done(r.result);
    r.onerror = () => fail(r.error);
    r.readAsDataURL(blob);
  });
}

async function dataUrl(file) {
  if (READ.includes(file.type) && file.size <= BYTES) return readAs(file);
  const bitmap = await createImageBitmap(file), scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas"), draw = canvas.getContext("2d");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  draw.fillStyle = "white"; // behind transparent pixels
  draw.fillRect(0, 0, canvas.width, canvas.height);
  draw.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.9);
}

export function thumbnail(url) {
  const img = document.createElement("img");
  img.className = "thumbnail";
  img.src = url;
  img.alt = "attached image";
  return img;
}

// The strip of thumbnails; failed(text) says what could not be read.
export class Attachments {
  #urls = [];
  #strip;
  #failed;

  constructor({ strip, button, input, drop, text, failed }) {
    this.#strip = strip;
    this.#failed = failed;
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.add(input.files);
      input.value = "";
    });
    text.addEventListener("paste", (e) => {
      const files = [...e.clipboardData.files].filter((f) => f.type.startsWith("image/"));
      if (!files.length) return;
      e.preventDefault();
      this.add(files);
    });
    drop.addEventListener("dragover", (e) => e.dataTransfer.types.includes("Files") && e.preventDefault());
    drop.addEventListener("drop", (e) => {
      if (!e.dataTransfer.files.length) return;
      e.preventDefault();
      this.add(e.dataTransfer.files);
    });
  }

  get count() {
    return this.#urls.length;
  }

  async add(files) {
    for (const file of files) {
      try {
        this.#urls.push(await dataUrl(file));
      } catch {
        this.#failed(`${file.name || "the file"} is no image that this browser reads`);
      }
    }
    this.#show();
  }

  set(urls) {
    this.#urls = [...urls];
    this.#show();
  }

  // Those attached so far; the strip is empty then.
  take() {
    const urls = this.#urls;
    this.set([]);
    return urls;
  }

  #show() {
    this.#strip.hidden = !this.#urls.length;
    this.#strip.replaceChildren(...this.#urls.map((url, i) => {
      const b = document.createElement("button");
      b.type = "button";
      b.title = "Remove this image";
      b.append(thumbnail(url));
      b.addEventListener("click", () => this.set(this.#urls.filter((_, k) => k !== i)));
      return b;
    }));
  }
}
