// Runs the model of a page, and shows its inputs and outputs.
//
// MODEL describes them. CODE is the model: WebAssembly, or ONNX if RUNTIME holds onnxruntime-web, a module and its
// WebAssembly. All three are raw deflate in base64.

const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array,
  int16: Int16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array };
const signed = bits => [-(2n ** (bits - 1n)), 2n ** (bits - 1n) - 1n];
const LIMITS = { int64: signed(64n), int32: signed(32n), int16: signed(16n), int8: signed(8n), uint8: [0n, 255n],
  bool: [0n, 1n] };
const MOST_FIELDS = 64, MOST_BARS = 12, MOST_ROWS = 50;

const $ = (tag, parent, properties = {}, attributes = {}) => {
  const made = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (parent) parent.append(made);
  return made;
};
const byId = id => document.getElementById(id);
const count = shape => shape.reduce((a, b) => a * b, 1);
// A shape without the batch axis, as text.
const axes = shape => shape[0] === 1 ? shape.slice(1) : shape;
const describe = info => info.name + ": " + info.dtype + " [" + axes(info.shape).join(", ") + "]";

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Models have `inputs` and `outputs`, flat arrays; `run` computes the latter from the former.
class CompiledModel {
  static async load(code) {
    const { instance } = await WebAssembly.instantiate(code, {});
    return new CompiledModel(instance.exports);
  }
  constructor(exports) {
    exports.init();
    const view = (info, address) => new ARRAYS[info.dtype](exports.memory.buffer, address, count(info.shape));
    this.inputs = MODEL.inputs.map((info, i) => view(info, exports["input_" + i]()));
    this.outputs = MODEL.outputs.map((info, i) => view(info, exports["output_" + i]()));
    this.run = async () => exports.run();
  }
}

class OnnxModel {
  static async load(code) {
    const [script, wasm] = await Promise.all(RUNTIME.map(inflate));
    const ort = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
    Object.assign(ort.env.wasm, { wasmBinary: wasm, numThreads: 1 });
    return new OnnxModel(ort, await ort.InferenceSession.create(code));
  }
  constructor(ort, session) {
    this.inputs = MODEL.inputs.map(info => new ARRAYS[info.dtype](count(info.shape)));
    this.outputs = [];
    const feeds = {};
    MODEL.inputs.forEach((info, i) => {
      // The file has no inputs that the model does not use.
      if (session.inputNames.includes(info.name))
        feeds[info.name] = new ort.Tensor(info.dtype, this.inputs[i], info.shape);
    });
    this.run = async () => {
      const results = await session.run(feeds);
      this.outputs = MODEL.outputs.map(info => results[info.name].data);
    };
  }
}

// Inputs write to `values` and call `changed`; `problem` says why they could not.

// An image [1, channels, height, width]: drawn with a finger or a mouse, or read from a file.
class ImageInput {
  constructor(info, values, parent, changed) {
    const [, channels, height, width] = info.shape;
    Object.assign(this, { values, changed, channels, height, width, problem: "" });
    [this.black, this.white] = info.range;
    this.scale = Math.max(1, Math.round(320 / Math.max(width, height)));
    $("p", parent, { textContent: info.name + ": draw here, or open an image" });
    this.canvas = $("canvas", parent, { width: width * this.scale, height: height * this.scale },
      { role: "img", "aria-label": info.name });
    const narrow = Math.min(1, width / height); // a high image is no higher than a wide one is wide
    this.canvas.style.maxWidth = 20 * narrow + "rem";
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    const buttons = $("div", parent, { className: "buttons" });
    $("button", buttons, { type: "button", textContent: "Clear", onclick: () => this.clear() });
    const file = $("label", buttons, { className: "file", textContent: "Open an image" });
    $("input", file, { type: "file", accept: "image/*", onchange: event => {
      this.open(event.target.files[0]);
      event.target.value = ""; // so that the same file can be opened again
    } });
    const label = $("label", buttons, { className: "check" });
    this.invert = $("input", label, { type: "checkbox", onchange: () => this.read() });
    label.append("Dark on light");
    const seen = $("div", parent, { className: "seen" });
    this.small = $("canvas", seen, { className: "small", width, height }, { "aria-hidden": true });
    this.small.style.width = 3.5 * narrow + "rem";
    $("p", seen, { textContent: "What the model sees: " + width + " x " + height });
    this.canvas.onpointerdown = event => {
      if (event.button) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.last = this.point(event);
      this.stroke(event);
    };
    this.canvas.onpointermove = event => { if (event.buttons & 1) this.stroke(event); };
    this.canvas.onpointerup = this.canvas.onpointercancel = () => { this.last = null; };
    this.canvas.ondragover = event => event.preventDefault();
    this.canvas.ondrop = event => { event.preventDefault(); this.open(event.dataTransfer.files[0]); };
    this.clear();
  }
  clear() {
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.read();
  }
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * this.canvas.width / box.width,
      (event.clientY - box.top) * this.canvas.height / box.height];
  }
  stroke(event) {
    const from = this.last || this.point(event);
    this.last = this.point(event);
    Object.assign(this.context, { strokeStyle: "#fff", lineCap: "round", lineJoin: "round",
      lineWidth: Math.max(1.6 * this.scale, Math.min(this.canvas.width, this.canvas.height) / 10) });
    this.context.beginPath();
    this.context.moveTo(...from);
    this.context.lineTo(this.last[0] + .01, this.last[1]); // a line without length would not be drawn
    this.context.stroke();
    this.read();
  }
  async open(file) {
    if (!file) return;
    try {
      const image = await createImageBitmap(file);
      const { width, height } = this.canvas;
      this.context.fillStyle = "#000"; // behind what is transparent
      this.context.fillRect(0, 0, width, height);
      // The pixels of a small image, such as one of the data set, stay as they are.
      Object.assign(this.context, { imageSmoothingEnabled: image.width > width || image.height > height,
        imageSmoothingQuality: "high" });
      this.context.drawImage(image, 0, 0, width, height);
      this.read();
    } catch {
      this.problem = file.name + " is not an image that this browser can read.";
      this.changed();
    }
  }
  // Each value is the mean over the pixels of the canvas that it stands for.
  read() {
    const { width, height, channels, scale, black, white } = this;
    const pixels = this.context.getImageData(0, 0, width * scale, height * scale).data;
    const shown = this.small.getContext("2d").createImageData(width, height);
    for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
      let colour = [0, 0, 0];
      for (let v = y * scale; v < (y + 1) * scale; v++) for (let u = x * scale; u < (x + 1) * scale; u++)
        for (let c = 0; c < 3; c++) colour[c] += pixels[(v * width * scale + u) * 4 + c];
      colour = colour.map(sum => sum / (255 * scale * scale));
      if (channels === 1) colour.fill(.299 * colour[0] + .587 * colour[1] + .114 * colour[2]);
      if (this.invert.checked) colour = colour.map(value => 1 - value);
      for (let c = 0; c < channels; c++) {
        const value = black + (white - black) * colour[c];
        this.values[(c * height + y) * width + x] = this.values instanceof Uint8Array ? Math.round(value) : value;
      }
      shown.data.set([...colour.map(value => 255 * value), 255], (y * width + x) * 4);
    }
    this.small.getContext("2d").putImageData(shown, 0, 0);
    this.problem = "";
    this.changed();
  }
}

// Other inputs: a field for each number, or one text for many.
class NumberInput {
  constructor(info, values, parent, changed) {
    Object.assign(this, { info, values, changed });
    const total = values.length, start = info.start, limits = LIMITS[info.dtype];
    const oninput = () => this.read();
    if (info.fields || total <= MOST_FIELDS) {
      if (total > 1) $("p", parent, { textContent: describe(info) });
      const fields = $("div", parent, { className: "fields" });
      this.fields = Array.from(values, (_, i) => {
        const name = info.fields ? info.fields[i] : info.name + (total > 1 ? " " + i : "");
        return $("input", $("label", fields, { textContent: name }),
          { type: "number", step: limits ? 1 : "any", value: start, oninput });
      });
    } else {
      const label = $("label", parent);
      $("p", label, { textContent: describe(info) + ", separated by spaces or commas" });
      this.fields = [$("textarea", label, { value: Array(total).fill(start).join(" "), spellcheck: false, oninput })];
    }
    this.read();
  }
  read() {
    const { info, values, fields } = this, total = values.length;
    const texts = fields.length === total ? fields.map(field => field.value)
      : fields[0].value.split(/[\s,;]+/).filter(Boolean);
    const numbers = texts.map(text => this.number(text.trim()));
    const wanted = LIMITS[info.dtype] ? "whole numbers from " + LIMITS[info.dtype].join(" to ") : "numbers";
    if (texts.length !== total) this.problem = info.name + " needs " + total + " numbers, not " + texts.length + ".";
    else if (numbers.includes(null)) this.problem = info.name + " needs " + wanted + ".";
    else this.problem = "";
    fields.forEach((field, i) => field.setAttribute("aria-invalid",
      fields.length === total ? numbers[i] === null : this.problem !== ""));
    if (!this.problem) values.set(numbers);
    this.changed();
  }
  // The text as an element of `values`, or null.
  number(text) {
    const limits = LIMITS[this.info.dtype];
    if (limits) {
      if (!/^[-+]?\d+$/.test(text)) return null;
      const whole = BigInt(text.replace("+", ""));
      if (whole < limits[0] || whole > limits[1]) return null;
      return this.values instanceof BigInt64Array ? whole : Number(whole);
    }
    const number = text === "" ? NaN : Number(text);
    return Number.isFinite(this.info.dtype === "float32" ? Math.fround(number) : number) ? number : null;
  }
}

// The columns of a table: a field for each, and what `TableDescription.encode` makes of them.
class Form {
  constructor(form, inputs, parent, changed) {
    Object.assign(this, { form, inputs, changed });
    const box = $("div", parent, { className: "fields" });
    this.fields = form.fields.map(field => {
      const label = $("label", box, { textContent: field.name }), { options, range, kind } = field;
      const hints = [];
      if (range) hints.push(range.map(text => String(text).split("T")[0]).join(" to "));
      if (!field.isRequired && !(options && field.missing === null)) hints.push("or empty");
      $("span", label, { className: "hint", textContent: hints.join(", ") });
      if (options) {
        const select = $("select", label, { oninput: () => this.read() });
        options.forEach((text, i) => $("option", select, { value: i, textContent: text }));
        if (field.missing !== null) $("option", select, { value: "", textContent: "" });
        return select;
      }
      const type = kind !== "date" ? "number" : field.hasTime ? "datetime-local" : "date";
      return $("input", label, { type, step: kind === "date" ? "" : LIMITS[kind] ? 1 : "any",
        value: field.start, oninput: () => this.read() });
    });
    this.read();
  }
  read() {
    const problems = [];
    const values = this.form.fields.map((field, i) => {
      // A browser has no text for what is not a number or a date.
      const input = this.fields[i], isBad = !!input.validity && input.validity.badInput;
      const value = isBad ? null : this.value(field, input.value);
      input.setAttribute("aria-invalid", value === null);
      if (value === null) problems.push(field.name + " needs " + (field.kind === "date" ? "a date"
        : LIMITS[field.kind] ? "a whole number" : "a number") + ".");
      return value;
    });
    this.problem = problems[0] || "";
    if (!this.problem) this.form.numbers.forEach((numbers, i) => {
      const cast = this.inputs[i] instanceof BigInt64Array ? BigInt : Number;
      this.inputs[i].set(numbers.map(([field, part]) => {
        const value = values[field];
        return cast(this.form.fields[field].kind === "date" ? this.date(value, part) : value);
      }));
    });
    this.changed();
  }
  // The number of a field's text, of dates in milliseconds; NaN if it is missing, null if it is invalid.
  value(field, text) {
    if (text === "") {
      if (field.isRequired) return null;
      if (field.missing === null) return NaN;
      text = String(field.missing);
    }
    if (field.options) return Number(text);
    if (field.kind === "date") return Date.parse(text + (text.includes("T") ? "Z" : ""));
    const limits = LIMITS[field.kind];
    if (limits) {
      const whole = /^[-+]?\d+$/.test(text) ? BigInt(text.replace("+", "")) : null;
      return whole !== null && whole >= limits[0] && whole <= limits[1] ? whole : null;
    }
    const number = Number(text);
    return Number.isFinite(field.kind === "float64" ? number : Math.fround(number)) ? number : null;
  }
  date(milliseconds, part) {
    const date = new Date(milliseconds);
    return { "": milliseconds / 864e5, year: date.getUTCFullYear(), month: date.getUTCMonth() + 1, day: date.getUTCDate(),
      weekday: (date.getUTCDay() + 6) % 7, hour: date.getUTCHours() }[part];
  }
}

// The probabilities of classes, from logits, log-probabilities or probabilities.
class Bars {
  constructor(info, parent) {
    this.names = MODEL.classes || Array.from({ length: count(info.shape) }, (_, i) => String(i));
    const size = this.names.length;
    this.best = $("div", parent, { className: "result", id: "class" }, { role: "status" });
    const rows = $("div", parent, { className: "rows" });
    this.rows = Array.from({ length: size > MOST_BARS ? MOST_BARS - 2 : size }, () => {
      const row = $("div", rows, { className: "row" }), name = $("span", row);
      const fill = $("div", $("div", row, { className: "track" }), { className: "fill" });
      return { row, name, fill, percent: $("span", row) };
    });
  }
  show(values) {
    const probabilities = this.probabilities(values), top = Math.max(...probabilities);
    const order = probabilities.map((_, i) => i);
    if (order.length > this.rows.length) order.sort((a, b) => probabilities[b] - probabilities[a]);
    const best = probabilities.indexOf(top);
    const isBest = i => MODEL.isMultiLabel ? probabilities[i] >= .5 : i === best;
    const text = best < 0 ? "?" : this.names.filter((_, i) => isBest(i)).join(", ") || "none";
    if (this.best.textContent !== text) this.best.textContent = text;
    this.rows.forEach(({ row, name, fill, percent }, i) => {
      const share = 100 * probabilities[order[i]];
      row.className = isBest(order[i]) ? "row best" : "row";
      name.textContent = this.names[order[i]];
      fill.style.width = (share || 0) + "%";
      percent.textContent = (Number.isNaN(share) ? "?" : share.toFixed(1)) + " %";
    });
  }
  // As in burnt/_probabilities.py.
  probabilities(values) {
    if (MODEL.isMultiLabel || values.length < this.names.length) { // one score is the second class's
      const shares = MODEL.isProbability ? values : values.map(value => 1 / (1 + Math.exp(-value)));
      return values.length < this.names.length ? [1 - shares[0], shares[0]] : shares;
    }
    const sum = numbers => numbers.reduce((a, b) => a + b, 0);
    if (values.every(value => value >= 0) && Math.abs(sum(values) - 1) < 1e-4) return values;
    const top = Math.max(...values), powers = values.map(value => Math.exp(value - top)), total = sum(powers);
    return powers.map(power => power / total);
  }
}

class Table {
  constructor(info, parent) {
    const shape = axes(info.shape), size = count(shape);
    if (size > 1) $("p", parent, { textContent: describe(info) });
    const table = $("table", parent);
    this.cells = Array.from({ length: Math.min(size, MOST_ROWS) }, (_, i) => {
      const row = $("tr", table);
      $("th", row, { scope: "row", textContent: size === 1 ? info.name : this.index(i, shape) });
      return $("td", row);
    });
    if (size > MOST_ROWS) $("p", parent, { textContent: "and " + (size - MOST_ROWS) + " more" });
  }
  index(i, shape) {
    const parts = [];
    for (const length of [...shape].reverse()) {
      parts.unshift(i % length);
      i = Math.floor(i / length);
    }
    return parts.join(", ");
  }
  show(values) {
    this.cells.forEach((cell, i) => {
      cell.textContent = typeof values[i] === "bigint" ? values[i] : Number(values[i].toPrecision(6));
    });
  }
}

let model, inputs = [], outputs = [], isRunning = false, isChanged = false;

// Runs the model on the newest inputs, once the browser has drawn them. Changes meanwhile need one further run.
async function update() {
  isChanged = true;
  if (isRunning || !outputs.length) return;
  isRunning = true;
  while (isChanged) {
    await new Promise(requestAnimationFrame);
    isChanged = false;
    let problem = inputs.map(input => input.problem).find(Boolean) || "";
    byId("outputs").classList.toggle("stale", problem !== "");
    if (!problem) problem = await run();
    if (byId("problem").textContent !== problem) byId("problem").textContent = problem;
  }
  isRunning = false;
}

async function run() {
  const start = performance.now();
  try {
    await model.run();
  } catch (error) {
    return "The model failed: " + error.message;
  }
  const milliseconds = performance.now() - start;
  byId("latency").textContent = (milliseconds < .1 ? "Less than 0.1" : milliseconds.toFixed(1)) + " ms for this answer.";
  let isNumber = true;
  outputs.forEach((output, i) => {
    const values = Array.from(model.outputs[i]);
    isNumber = isNumber && values.every(value => !Number.isNaN(value));
    output.show(values);
  });
  return isNumber ? "" : "The model returned NaN, which is not a number.";
}

async function start() {
  try {
    model = await (RUNTIME ? OnnxModel : CompiledModel).load(await inflate(CODE));
  } catch (error) {
    byId("latency").textContent = "";
    byId("problem").textContent = "This browser cannot run the model: " + error.message;
    return;
  }
  const part = id => $("div", byId(id), { className: "part" });
  if (MODEL.form) inputs = [new Form(MODEL.form, model.inputs, part("inputs"), update)];
  else inputs = MODEL.inputs.map((info, i) =>
    new (info.isImage ? ImageInput : NumberInput)(info, model.inputs[i], part("inputs"), update));
  outputs = MODEL.outputs.map(info => new (MODEL.isClassifier ? Bars : Table)(info, part("outputs")));
  update();
}
start();
