// The form of cost.md: looks up in COSTS (cost-table.js) what `solar plan` said, and multiplies by the number of samples.
"use strict";

const NAMES = {
  torch: "PyTorch, each sample in its turn",
  lru: "a cache of what was used last, as the page cache is",
  pinned: "a part pinned in memory, of all nodes: the ideal cache",
  solar: "solar",
};
const size = nbytes => {
  const power = Math.min(5, Math.max(0, Math.floor(Math.log2(Math.max(nbytes, 1)) / 10)));
  return `${Number((nbytes / 1024 ** power).toPrecision(3))} ${["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
};
const duration = seconds => {
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  for (const [unit, least, of] of [["s", 120, 1], ["min", 7200, 60], ["h", 172800, 3600]]) {
    if (seconds < least) return `${Number((seconds / of).toPrecision(3))} ${unit}`;
  }
  return `${Number((seconds / 86400).toPrecision(3)).toLocaleString("en")} days`;
};
const made = (tag, text = "", attributes = {}) => {
  const one = Object.assign(document.createElement(tag), attributes);
  one.textContent = text;
  return one;
};

const CHOICES = {  // of each: its label, its entries in words, and the one that is chosen at first
  storage: ["The data lie on", COSTS.storages.map(([name]) => name), 0],
  size: ["One sample has", COSTS.sizes.map(size), 1],
  share: ["Memory takes", COSTS.shares.map(share => `${share * 100} % of them`), 2],
  chunk: ["Samples in a chunk", COSTS.chunks.map(count => count === 1 ? "1, or not chunked" : `${count}`), 0],
  ranks: ["Processes", COSTS.ranks.map(([all, node]) => all === node ? `${all}` : `${all} on ${all / node} nodes`), 0],
};
const NUMBERS = { samples: ["Number of samples", 1_000_000], epochs: ["Epochs", 100] };

function form(place) {
  const fields = {};
  const add = (name, label, field) => {
    const around = made("label", `${label} `);
    field.id = `cost-${name}`;
    fields[name] = field;
    around.append(field);
    place.append(around);
  };
  for (const [name, [label, value]] of Object.entries(NUMBERS)) {
    add(name, label, made("input", "", { type: "number", min: 1, max: 1e12, value, inputMode: "numeric" }));
  }
  for (const [name, [label, entries, first]] of Object.entries(CHOICES)) {
    const list = made("select");
    list.append(...entries.map((text, value) => made("option", text, { value })));
    list.value = first;
    add(name, label, list);
  }
  return fields;
}

function cell(at) {  // in the order in which bench/costs.py fills them
  const lengths = Object.values(CHOICES).map(([, entries]) => entries.length);
  const places = Object.keys(CHOICES).map(name => at[name]);
  return COSTS.cells[places.reduce((sum, place, axis) => sum * lengths[axis] + place, 0)];
}

function answer(at, place) {
  const nbytes = at.samples * COSTS.sizes[at.size], [all, perNode] = COSTS.ranks[at.ranks];
  const memory = Math.floor(nbytes * COSTS.shares[at.share] / (all / perNode));
  const found = cell(at), times = at.samples / COSTS.samples;
  const [, latency, bandwidth, iops] = COSTS.storages[at.storage];
  place.replaceChildren(made("p", `${size(nbytes)} in all, ${size(memory)} of memory on each node.`));
  if (found === null) {
    const why = "Such a part of 50,000 samples has no room for the batches that are on their way, so the table has no " +
      "figure here. Of more samples it may: the command says.";
    place.append(made("p", why));
  } else {
    const table = made("table"), body = made("tbody"), head = made("tr");
    for (const text of ["reading", "an epoch", `${at.epochs.toLocaleString("en")} epochs`, "requests an epoch"]) {
      head.append(made("th", text));
    }
    const first = made("thead");
    first.append(head);
    COSTS.policies.forEach((name, row) => {
      const line = made("tr", "", { className: name }), seconds = found[row] * times;
      const requests = Number((found[row + COSTS.policies.length] * times).toPrecision(3));
      const said = [NAMES[name], duration(seconds), duration(seconds * at.epochs), requests.toLocaleString("en")];
      line.append(...said.map(text => made("td", text)));
      body.append(line);
    });
    table.append(first, body);
    place.append(table);
  }
  const said = `solar plan --samples ${at.samples} --sample-bytes ${COSTS.sizes[at.size]} --samples-per-chunk ` +
    `${COSTS.chunks[at.chunk]} --memory ${memory} --ranks ${all} --ranks-per-node ${perNode} --batch-size ` +
    `${COSTS.batch} --latency ${latency * 1e3}ms --bandwidth ${bandwidth} --iops ${iops}`;
  place.append(made("p", "The same for exactly your numbers:"), made("pre", said));
}

const fields = form(document.getElementById("cost"));
const place = document.getElementById("cost-answer");
const update = () => {
  const at = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, Math.round(Number(field.value))]));
  if (at.samples >= 1 && at.epochs >= 1) answer(at, place);
  else place.replaceChildren(made("p", "How many samples, and how many epochs? Both are numbers from 1."));
};
for (const field of Object.values(fields)) field.addEventListener("input", update);
update();
