// Runs the page's script on a stand-in for the document; prints what it shows as JSON.
// node page.js script.mjs data.txt [id=value ...]
const fs = require("fs"), url = require("url");
const [, , script, data, ...settings] = process.argv;
const elements = {};
function element() {
  const options = [], listeners = {};
  return { options, listeners, innerHTML: "", textContent: "",
    add(option) { options.push(option.text); if (this.value === undefined) this.value = option.text; },
    addEventListener(name, listener) { listeners[name] = listener; } };
}
global.document = { getElementById: id => elements[id] ??= element() };
global.Option = class { constructor(text) { this.text = text; } };
document.getElementById("data").textContent = fs.readFileSync(data, "utf8");
for (const [id, value] of Object.entries({ seqs: "1", tokens: "512", context: "512" })) document.getElementById(id).value = value;
import(url.pathToFileURL(script)).then(() => {
  const phase = elements.phase.value;
  for (const [id, value] of settings.map(s => s.split("="))) elements[id].value = value;
  (settings.some(s => s.startsWith("measured=")) ? elements.measured : elements.phase).listeners.input();
  const shown = Object.fromEntries(Object.entries(elements).map(([id, e]) => [id, e.innerHTML || e.textContent]));
  console.log(JSON.stringify({ phase, max: Object.fromEntries(["seqs", "tokens", "context"].map(id => [id, elements[id].max])), shown, unpacked: elements.unpacking.hidden }));
});
