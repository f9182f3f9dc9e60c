// Fills in the form of docs/cost.js, with a document of ours, and prints what it answers.
// node cost_form.mjs FOLDER_OF_DOCS '[{"samples": 50000, "size": 2, ...}, ...]'
import { readFileSync } from "node:fs";
import { runInNewContext } from "node:vm";

const element = tag => ({
  tag, textContent: "", children: [], heard: [],
  append(...more) { this.children.push(...more); },
  replaceChildren(...more) { this.children = more; },
  addEventListener(_, act) { this.heard.push(act); },
});
const all = one => [one, ...(one.children ?? []).flatMap(all)];
const places = { cost: element("div"), "cost-answer": element("div") };
const document = { createElement: element, getElementById: id => places[id] };
const [folder, asked] = process.argv.slice(2);
const source = ["cost-table.js", "cost.js"].map(name => readFileSync(`${folder}/${name}`, "utf8")).join("\n");
runInNewContext(source, { document });

const fields = Object.fromEntries(all(places.cost).filter(one => one.id).map(one => [one.id.slice(5), one]));
const texts = tag => all(places["cost-answer"]).filter(one => one.tag === tag).map(one => one.textContent);
const answers = JSON.parse(asked).map(values => {
  for (const [name, value] of Object.entries(values)) {
    fields[name].value = value;
    for (const act of fields[name].heard) act();
  }
  const rows = all(places["cost-answer"]).filter(one => one.tag === "tr" && one.className);
  const table = Object.fromEntries(rows.map(row => [row.className, row.children.map(one => one.textContent)]));
  return { table, said: texts("p"), command: texts("pre") };
});
console.log(JSON.stringify(answers));
