// Asks the search of a built site, by the worker that a browser would run, and prints the pages that it finds.
// node search_site.mjs SITE '["resume", "s3", ...]'
import { readFileSync, readdirSync } from "node:fs";
import { createContext, runInContext } from "node:vm";

const [site, asked] = process.argv.slice(2);
const workers = `${site}/assets/javascripts/workers`;
const source = readFileSync(`${workers}/${readdirSync(workers).find(name => /^search\..*\.js$/.test(name))}`, "utf8");
const waiting = [];
const self = {
  console,
  heard: null,
  addEventListener(_, act) { self.heard = act; },
  postMessage(answer) { waiting.shift()(answer); },
};
self.self = self;
runInContext(source, createContext(self));
const ask = data => new Promise(done => { waiting.push(done); self.heard({ data }); });

const { config, docs } = JSON.parse(readFileSync(`${site}/search/search_index.json`, "utf8"));
await ask({ type: 0, data: { config, docs, options: { suggest: false } } });
const found = {};
for (const query of JSON.parse(asked)) {
  const answer = await ask({ type: 2, data: query });
  found[query] = answer.data.items.map(([first]) => first.location.split("#")[0]);
}
console.log(JSON.stringify(found));
