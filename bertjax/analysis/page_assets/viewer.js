"use strict";
// The viewer of maps, and the switch between light and dark. It reads the JSON of its section and asks for nothing else.

// Dark or light: the reader's choice, or else that of the system.
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
let isPrinting = false; // paper is light
const listeners = [];

function isDark() {
  return !isPrinting && (chosen ? chosen === "dark" : dark.matches);
}

function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  const button = document.getElementById("theme");
  button.hidden = false;
  button.setAttribute("aria-pressed", String(isDark()));
  button.textContent = isDark() ? "☀ light" : "☾ dark";
  button.setAttribute("aria-label", isDark() ? "switch to light" : "switch to dark");
  listeners.forEach((redraw) => redraw());
}

document.getElementById("theme").addEventListener("click", () => {
  chosen = isDark() ? "light" : "dark";
  applyTheme();
});
dark.addEventListener("change", applyTheme);
for (const [event, value] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    isPrinting = value;
    applyTheme();
  });
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function rgb(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

// Make an element with properties and children.
function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function limit(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

// The bytes [L, H, T, T] of an entry; a byte b is the weight (b / 255)².
async function decode(entry) {
  const packed = Uint8Array.from(atob(entry.bytes), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function shown(weight) {
  return weight >= 0.0995 ? weight.toFixed(2) : weight.toFixed(3); // the digits that a byte holds
}

class Viewer {
  constructor(root, number) {
    this.root = root;
    this.id = `viewer-${number}`;
    this.entries = JSON.parse(root.querySelector("script").textContent);
    this.row = 0;
    this.column = 0;
    this.bytes = null;
    this.hovered = null;
    this.build();
    this.choose();
    listeners.push(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.scroll);
  }

  build() {
    const values = (key) => [...new Set(this.entries.map((entry) => entry[key]))];
    const select = (key, label) => {
      const options = values(key).map((value) => make("option", { value, textContent: value }));
      const element = make("select", { name: key }, ...options);
      const box = make("label", { className: key }, label, element);
      box.hidden = options.length < 2 && key !== "sentence";
      element.addEventListener("change", () => this.choose());
      return [box, element];
    };
    const slider = (name) => {
      const output = make("span", {});
      const element = make("input", { type: "range", name, min: 1, max: 1, value: 1 });
      element.addEventListener("input", () => this.draw());
      return [make("label", {}, output, element), element, output];
    };
    const [modelBox, model] = select("model", "Model");
    const [kindBox, kind] = select("kind", "Map");
    const [sentenceBox, sentence] = select("sentence", "Sentence");
    const [layerBox, layer, layerText] = slider("layer");
    const [headBox, head, headText] = slider("head");
    Object.assign(this, { model, kind, sentence, layer, head, layerText, headText });

    this.readout = make("p", { className: "readout" });
    this.readout.setAttribute("aria-live", "polite");
    this.where = make("p", { className: "where" }); // in print, where the lists are not
    this.overview = make("canvas", { width: 1, height: 1 });
    this.overview.setAttribute("aria-hidden", "true"); // the sliders do the same
    this.overviewBox = make("figure", { className: "overview" }, this.overview,
      make("figcaption", { textContent: "All heads: a row for each layer. Click one to see it." }));
    this.canvas = make("canvas", { className: "map", tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "map");
    this.scroll = make("div", { className: "scroll" }, this.canvas);
    const keys = make("p", { className: "hint" });
    keys.innerHTML = "With the map in focus: <kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> choose a cell, with " +
      "<kbd>Shift</kbd> a head or layer, <kbd>Page Up</kbd> <kbd>Page Down</kbd> a sentence. A row is the token that " +
      "attends, a column the token it attends to. Color follows the square root of the weight.";
    this.root.append(
      make("div", { className: "controls" }, sentenceBox, modelBox, kindBox, layerBox, headBox),
      this.where, this.readout, make("div", { className: "stage" }, this.overviewBox, this.scroll), keys);

    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => { this.hovered = null; this.drawCell(); });
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) [this.row, this.column] = cell;
      this.drawCell();
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.drawCell());
    this.canvas.addEventListener("blur", () => this.drawCell());
    this.overview.addEventListener("click", (event) => {
      const box = this.overview.getBoundingClientRect();
      this.head.value = 1 + Math.floor((event.clientX - box.left) / (box.width / this.entry.heads));
      this.layer.value = 1 + Math.floor((event.clientY - box.top) / (box.height / this.entry.layers));
      this.draw();
    });
  }

  // Show the entry that the lists name. Not every model has every kind of map of every sentence.
  async choose() {
    const keys = ["model", "kind", "sentence"];
    const fits = (count) => this.entries.find((entry) =>
      keys.slice(0, count).every((key) => entry[key] === this[key].value));
    const entry = fits(3) || fits(2) || fits(1);
    keys.forEach((key) => { this[key].value = entry[key]; });
    const bytes = await decode(entry);
    if (keys.some((key) => this[key].value !== entry[key])) return; // another choice came in between
    Object.assign(this, { entry, bytes });
    for (const [slider, count] of [[this.layer, entry.layers], [this.head, entry.heads]]) {
      slider.max = count;
      slider.parentElement.hidden = count < 2;
    }
    this.row = Math.min(this.row, entry.tokens.length - 1);
    this.column = Math.min(this.column, entry.tokens.length - 1);
    this.overviewBox.hidden = entry.layers * entry.heads < 2;
    this.hovered = null;
    this.draw();
  }

  // The bytes [T, T] of a head; layer and head are counted from 0.
  map(layer, head) {
    const size = this.entry.tokens.length ** 2;
    const start = (layer * this.entry.heads + head) * size;
    return this.bytes.subarray(start, start + size);
  }

  weight(row, column) {
    return (this.map(this.layer.value - 1, this.head.value - 1)[row * this.entry.tokens.length + column] / 255) ** 2;
  }

  draw() {
    if (!this.bytes) return;
    this.root.dataset.shown = this.entries.indexOf(this.entry);
    const { layers, heads } = this.entry;
    this.layerText.textContent = `Layer ${this.layer.value} of ${layers}`;
    this.headText.textContent = `Head ${this.head.value} of ${heads}`;
    if (layers * heads > 1) this.drawOverview();
    this.drawCell();
  }

  // The map with its chosen cell, without the overview: what follows the pointer must be fast.
  drawCell() {
    if (!this.bytes) return;
    this.drawMap();
    this.describe(this.entry.tokens);
  }

  // A picture of bytes [T, T], one pixel a cell, between the color of the paper and that of a strong weight.
  picture(bytes) {
    const size = this.entry.tokens.length;
    const [low, high] = [rgb(color("--paper")), rgb(color("--strong"))];
    const image = new ImageData(size, size);
    for (let cell = 0; cell < bytes.length; cell += 1) {
      for (let channel = 0; channel < 3; channel += 1) {
        image.data[4 * cell + channel] = low[channel] + (high[channel] - low[channel]) * bytes[cell] / 255;
      }
      image.data[4 * cell + 3] = 255;
    }
    const canvas = make("canvas", { width: size, height: size });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  // Give a canvas its size in CSS pixels, at the resolution of the screen.
  prepare(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.ceil(width * ratio);
    canvas.height = Math.ceil(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }

  // Where the cells are: labels of any length are shown whole, and what does not fit the page scrolls.
  layout() {
    const size = this.entry.tokens.length;
    const context = this.canvas.getContext("2d");
    context.font = `bold ${this.font()}`;
    const margin = Math.ceil(Math.max(...this.entry.tokens.map((token) => context.measureText(token).width))) + 10;
    const smallest = size <= 160 ? 13 : Math.max(3, Math.floor(2000 / size));
    const cell = limit(Math.floor((this.scroll.clientWidth - margin - 2) / size), smallest, 30);
    return { size, margin, cell, every: Math.ceil(13 / cell) };
  }

  font() {
    return `12px ${getComputedStyle(document.body).fontFamily}`;
  }

  drawMap() {
    const { size, margin, cell, every } = this.layout();
    this.geometry = { size, margin, cell };
    Object.assign(this.canvas.dataset, { margin, cell }); // for tests: where the cells are
    const extent = margin + size * cell + 1;
    const context = this.prepare(this.canvas, extent, extent);
    const [row, column] = this.hovered || [this.row, this.column];
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture(this.map(this.layer.value - 1, this.head.value - 1)),
      margin, margin, size * cell, size * cell);
    context.strokeStyle = color("--line");
    context.strokeRect(margin - 0.5, margin - 0.5, size * cell + 1, size * cell + 1);
    context.font = this.font();
    context.textBaseline = "middle";
    this.entry.tokens.forEach((token, index) => {
      const middle = margin + (index + 0.5) * cell;
      const label = (isHere, draw) => {
        if (index % every && !isHere) return;
        context.fillStyle = color(isHere ? "--strong" : "--ink");
        context.font = isHere ? `bold ${this.font()}` : this.font();
        context.save();
        draw();
        context.restore();
      };
      label(index === row, () => {
        context.textAlign = "right";
        context.fillText(token, margin - 6, middle);
      });
      label(index === column, () => {
        context.translate(middle, margin - 6);
        context.rotate(-Math.PI / 2);
        context.textAlign = "left";
        context.fillText(token, 0, 0);
      });
    });
    if (this.hovered || document.activeElement === this.canvas) {
      context.strokeStyle = color("--mark");
      context.lineWidth = 2;
      context.strokeRect(margin + column * cell, margin + row * cell, cell, cell);
    }
  }

  drawOverview() {
    const { layers, heads } = this.entry;
    const box = limit(Math.floor(Math.min(440, this.root.clientWidth - 40) / heads), 14, 56);
    const context = this.prepare(this.overview, box * heads, box * layers);
    for (let layer = 0; layer < layers; layer += 1) {
      for (let head = 0; head < heads; head += 1) {
        context.drawImage(this.picture(this.map(layer, head)), head * box + 2, layer * box + 2, box - 4, box - 4);
        context.strokeStyle = color("--line");
        context.lineWidth = 1;
        context.strokeRect(head * box + 1.5, layer * box + 1.5, box - 3, box - 3);
      }
    }
    context.strokeStyle = color("--mark");
    context.lineWidth = 3;
    context.strokeRect((this.head.value - 1) * box + 1.5, (this.layer.value - 1) * box + 1.5, box - 3, box - 3);
  }

  // The cell under the pointer and the strongest weights of its row, in words.
  describe(tokens) {
    const [row, column] = this.hovered || [this.row, this.column];
    const strongest = tokens.map((token, index) => [this.weight(row, index), token])
      .sort((one, other) => other[0] - one[0]).slice(0, 3).map(([weight, token]) => `${token} ${shown(weight)}`);
    this.readout.replaceChildren(
      make("strong", { textContent: `${tokens[row]} → ${tokens[column]}: ${shown(this.weight(row, column))}` }),
      make("br", {}), `The strongest weights of ${tokens[row]}: ${strongest.join(", ")}`);
    const where = [this.entry.model, this.entry.kind];
    if (this.entry.layers > 1) where.push(`layer ${this.layer.value}`);
    if (this.entry.heads > 1) where.push(`head ${this.head.value}`);
    this.where.textContent = `${where.join(", ")}: ${this.entry.sentence}`;
    this.canvas.setAttribute("aria-label", `Map of ${this.where.textContent}. The arrow keys choose a cell.`);
  }

  cellAt(event) {
    const { size, margin, cell } = this.geometry;
    const box = this.canvas.getBoundingClientRect();
    const [column, row] = [event.clientX - box.left, event.clientY - box.top].map((at) =>
      Math.floor((at - margin) / cell));
    return row >= 0 && row < size && column >= 0 && column < size ? [row, column] : null;
  }

  hover(event) {
    this.hovered = this.cellAt(event);
    this.drawCell();
  }

  key(event) {
    const last = this.entry.tokens.length - 1;
    const [right, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ||
      [0, 0];
    const turn = { PageUp: -1, PageDown: 1 }[event.key] || 0;
    if (!right && !down && !turn) return;
    event.preventDefault();
    this.hovered = null;
    if (turn) {
      this.sentence.selectedIndex = limit(this.sentence.selectedIndex + turn, 0, this.sentence.options.length - 1);
      this.choose();
    } else if (event.shiftKey) {
      this.head.value = Number(this.head.value) + right; // a slider stops at its ends
      this.layer.value = Number(this.layer.value) + down;
      this.draw();
    } else {
      this.column = limit(this.column + right, 0, last);
      this.row = limit(this.row + down, 0, last);
      this.drawCell();
      this.reveal();
    }
  }

  // Scroll the chosen cell into view, with its labels where they fit.
  reveal() {
    const { margin, cell } = this.geometry;
    const edge = (at, start, length) => limit(start, margin + (at + 1) * cell - length + 4, margin + at * cell - 4);
    this.scroll.scrollLeft = edge(this.column, this.scroll.scrollLeft, this.scroll.clientWidth);
    this.scroll.scrollTop = edge(this.row, this.scroll.scrollTop, this.scroll.clientHeight);
  }
}

// What scrolls sideways is reached by keyboard, and nothing else is a stop on the way.
const scrollers = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
  else target.removeAttribute("tabindex");
}));

applyTheme();
document.querySelectorAll(".wide").forEach((element) => scrollers.observe(element));
document.querySelectorAll(".viewer").forEach((root, number) => new Viewer(root, number));
