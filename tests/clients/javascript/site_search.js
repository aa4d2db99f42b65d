// Runs the search of the built site without a browser: node site_search.js SITE LANGUAGE QUERY...
// prints the results of each query, as a page in this language shows them.
// It uses the theme's worker, the site's index, and the site's wrapper around Worker (assets/iframe-worker.js).
"use strict";
const { readFileSync, readdirSync } = require("node:fs");
const { join } = require("node:path");
const vm = require("node:vm");

const [site, lang, ...queries] = process.argv.slice(2);
const read = (...names) => readFileSync(join(site, ...names), "utf-8");

const index = vm.runInNewContext(`${read("search", "search_index.js")}; __index`);
const workers = join("assets", "javascripts", "workers");
const [script] = readdirSync(join(site, workers)).filter((name) => name.endsWith(".min.js"));

let listener, shown, answered;
const reply = (data) => shown({ data });
const scope = { addEventListener: (_, handle) => (listener = handle), postMessage: reply, console, URL };
scope.self = scope;
vm.runInNewContext(read(workers, script), scope);

class Worker {
  postMessage(data) {
    listener({ data });
  }

  addEventListener(_, handle) {
    shown = handle;
  }
}
const page = { location: { protocol: "http:" }, document: { documentElement: { lang } }, EventTarget, MessageEvent };
page.window = Object.assign(page, { Worker });
vm.runInNewContext(read("assets", "iframe-worker.js"), page);

const worker = new page.window.Worker();
worker.addEventListener("message", ({ data }) => answered(data));
const ask = (message) =>
  new Promise((resolve) => {
    answered = resolve;
    worker.postMessage(message);
  });

(async () => {
  await ask({ type: 0, data: { ...index, options: {} } });
  for (const query of queries) {
    const { data } = await ask({ type: 2, data: query });
    console.log(JSON.stringify(data.items.flat().map((item) => item.location)));
  }
})();
