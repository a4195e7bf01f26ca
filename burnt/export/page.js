// Runs the model of a page, and draws its inputs and outputs. MODEL describes them, CODE is the WebAssembly.
const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array,
  int16: Int16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array };
const $ = (tag, parent, properties = {}) => {
  const made = Object.assign(document.createElement(tag), properties);
  if (parent) parent.append(made);
  return made;
};
const count = shape => shape.reduce((a, b) => a * b, 1);

class Model {
  constructor(bytes) {
    this.exports = new WebAssembly.Instance(new WebAssembly.Module(bytes), {}).exports;
    this.exports.init();
    this.inputs = MODEL.inputs.map((info, i) => this.view(info, this.exports["input_" + i]()));
    this.outputs = MODEL.outputs.map((info, i) => this.view(info, this.exports["output_" + i]()));
  }
  view(info, address) {
    return new ARRAYS[info.dtype](this.exports.memory.buffer, address, count(info.shape));
  }
  run() {
    const start = performance.now();
    this.exports.run();
    this.milliseconds = performance.now() - start;
  }
}

// An image [1, channels, height, width]: drawn with a finger or a mouse, or read from a file.
class ImageInput {
  constructor(info, values, parent, changed) {
    const [, channels, height, width] = info.shape;
    Object.assign(this, { info, values, changed, channels, height, width });
    [this.low, this.high] = info.range || [0, 1];
    const scale = Math.max(1, Math.round(320 / Math.max(width, height)));
    this.canvas = $("canvas", parent, { width: width * scale, height: height * scale });
    this.canvas.style.setProperty("--ratio", width + " / " + height);
    this.canvas.setAttribute("aria-label", "Draw here: " + info.name);
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    const buttons = $("div", parent, { className: "buttons" });
    $("button", buttons, { textContent: "Clear", onclick: () => this.clear() });
    const file = $("label", buttons, { className: "file", textContent: "Open an image" });
    $("input", file, { type: "file", accept: "image/*", onchange: event => this.open(event.target.files[0]) });
    const invert = $("label", buttons);
    this.invert = $("input", invert, { type: "checkbox", onchange: () => this.read() });
    invert.append(" dark on light");
    $("p", parent, { textContent: "What the model sees, " + width + " x " + height + ":" });
    this.small = $("canvas", parent, { className: "small", width, height });
    this.small.style.setProperty("--ratio", width + " / " + height);
    this.canvas.onpointerdown = event => { this.canvas.setPointerCapture(event.pointerId); this.stroke(event, true); };
    this.canvas.onpointermove = event => { if (event.buttons) this.stroke(event, false); };
    this.canvas.ondragover = event => event.preventDefault();
    this.canvas.ondrop = event => { event.preventDefault(); this.open(event.dataTransfer.files[0]); };
    this.clear();
  }
  clear() {
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.read();
  }
  stroke(event, first) {
    const box = this.canvas.getBoundingClientRect();
    const point = [(event.clientX - box.left) * this.canvas.width / box.width,
      (event.clientY - box.top) * this.canvas.height / box.height];
    const from = first ? point : this.last;
    Object.assign(this.context, { strokeStyle: "#fff", lineCap: "round", lineJoin: "round",
      lineWidth: Math.min(this.canvas.width, this.canvas.height) / 9 });
    this.context.beginPath();
    this.context.moveTo(...from);
    this.context.lineTo(point[0] + .01, point[1]);
    this.context.stroke();
    this.last = point;
    this.read();
  }
  async open(file) {
    if (!file) return;
    try {
      const image = await createImageBitmap(file);
      this.context.imageSmoothingEnabled = image.width > this.canvas.width;
      this.context.drawImage(image, 0, 0, this.canvas.width, this.canvas.height);
      this.read();
    } catch (error) {
      problem(file.name + " is not an image that this browser can read.");
    }
  }
  // Each value is the mean over the pixels of the canvas that it stands for.
  read() {
    const { width, height, channels } = this, scale = this.canvas.width / width;
    const pixels = this.context.getImageData(0, 0, this.canvas.width, this.canvas.height).data;
    for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
      const sums = [0, 0, 0];
      for (let v = y * scale; v < (y + 1) * scale; v++) for (let u = x * scale; u < (x + 1) * scale; u++)
        for (let c = 0; c < 3; c++) sums[c] += pixels[(v * this.canvas.width + u) * 4 + c];
      const means = sums.map(sum => sum / (255 * scale * scale));
      const grey = .299 * means[0] + .587 * means[1] + .114 * means[2];
      for (let c = 0; c < channels; c++) {
        const light = channels === 1 ? grey : means[c];
        const value = this.low + (this.high - this.low) * (this.invert.checked ? 1 - light : light);
        this.values[(c * height + y) * width + x] = ARRAYS[this.info.dtype] === BigInt64Array ? BigInt(Math.round(value)) : value;
      }
    }
    this.show();
    this.changed();
  }
  set(values) {
    values.forEach((value, i) => { this.values[i] = value; });
    this.show();
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.small, 0, 0, this.canvas.width, this.canvas.height);
    this.changed();
  }
  show() {
    const { width, height, channels } = this, context = this.small.getContext("2d");
    const image = context.createImageData(width, height), area = width * height;
    for (let i = 0; i < area; i++) for (let c = 0; c < 4; c++) {
      const value = Number(this.values[(channels === 1 ? 0 : Math.min(c, channels - 1)) * area + i]);
      image.data[i * 4 + c] = c === 3 ? 255 : 255 * (value - this.low) / (this.high - this.low || 1);
    }
    context.putImageData(image, 0, 0);
  }
}

// Other inputs: a field for each number, or one text for many.
class NumberInput {
  constructor(info, values, parent, changed) {
    Object.assign(this, { info, values, changed });
    const total = count(info.shape), middle = info.range ? (info.range[0] + info.range[1]) / 2 : 0;
    this.isWhole = !info.dtype.startsWith("float");
    $("p", parent, { textContent: info.name + ": " + info.dtype + " [" + info.shape.slice(1).join(", ") + "]" });
    const start = this.isWhole ? Math.round(middle) : Number(middle.toPrecision(3));
    if (total <= 64) {
      const fields = $("div", parent, { className: "fields" });
      this.fields = Array.from({ length: total }, (_, i) => {
        const name = (MODEL.fields && MODEL.fields[i]) || info.name + (total > 1 ? " " + i : "");
        const label = $("label", fields, { textContent: name });
        return $("input", label, { type: "number", step: this.isWhole ? 1 : "any", value: start,
          oninput: () => this.read() });
      });
    } else {
      this.text = $("textarea", parent, { value: Array(total).fill(start).join(" "), oninput: () => this.read() });
      this.text.setAttribute("aria-label", info.name);
    }
    this.read();
  }
  read() {
    const texts = this.fields ? this.fields.map(field => field.value) : this.text.value.trim().split(/[\s,;]+/);
    const total = this.values.length, numbers = texts.map(text => text === "" ? NaN : Number(text));
    if (numbers.length !== total) return problem(this.info.name + " needs " + total + " numbers, not " + numbers.length + ".");
    if (!numbers.every(Number.isFinite)) return problem(this.info.name + " needs numbers.");
    if (this.isWhole && !numbers.every(Number.isInteger)) return problem(this.info.name + " needs whole numbers.");
    this.set(numbers);
  }
  set(numbers) {
    numbers.forEach((number, i) => { this.values[i] = this.values instanceof BigInt64Array ? BigInt(number) : number; });
    this.changed();
  }
}

function showClasses(values, parent) {
  const top = Math.max(...values), powers = values.map(value => Math.exp(value - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  const order = values.map((_, i) => i);
  if (values.length > 12) order.sort((a, b) => values[b] - values[a]).splice(10);
  const best = values.indexOf(top), name = i => (MODEL.classes || [])[i] || String(i);
  $("div", parent, { className: "result", id: "class", textContent: name(best) });
  const rows = $("div", parent, { className: "rows" });
  for (const i of order) {
    const row = $("div", rows, { className: i === best ? "row best" : "row" });
    $("span", row, { textContent: name(i) });
    const fill = $("div", $("div", row, { className: "track" }), { className: "fill" });
    fill.style.width = 100 * powers[i] / sum + "%";
    $("span", row, { textContent: (100 * powers[i] / sum).toFixed(1) + " %" });
  }
}

function showNumbers(info, values, parent) {
  $("p", parent, { textContent: info.name + ": [" + info.shape.slice(1).join(", ") + "]" });
  const table = $("table", parent);
  values.slice(0, 50).forEach((value, i) => {
    const row = $("tr", table);
    $("td", row, { textContent: values.length > 1 ? i : info.name });
    $("td", row, { textContent: Number(value.toPrecision(6)) });
  });
  if (values.length > 50) $("p", parent, { textContent: "and " + (values.length - 50) + " more" });
}

const problem = text => { document.getElementById("problem").textContent = text; };
const model = new Model(Uint8Array.from(atob(CODE), character => character.charCodeAt(0)));
let ready = false;
function update() {
  if (!ready) return;
  problem("");
  model.run();
  const parent = document.getElementById("outputs");
  parent.replaceChildren();
  MODEL.outputs.forEach((info, i) => {
    const values = Array.from(model.outputs[i], Number);
    if (!values.every(Number.isFinite)) problem("The model returned numbers that are not finite.");
    if (MODEL.isClassifier) showClasses(values, parent);
    else showNumbers(info, values, parent);
  });
  document.getElementById("latency").textContent = model.milliseconds.toFixed(1) + " ms.";
}
const inputs = MODEL.inputs.map((info, i) => {
  const [, channels] = info.shape, isImage = info.shape.length === 4 && (channels === 1 || channels === 3);
  const kind = isImage && info.dtype.startsWith("float") ? ImageInput : NumberInput;
  return new kind(info, model.inputs[i], document.getElementById("inputs"), update);
});
ready = true;
update();
