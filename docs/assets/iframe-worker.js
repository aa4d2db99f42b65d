// Makes the search work in pages that are opened as files, and for options and variables such as --redis and A2C_URL.
// Every page loads it before the theme's script, which starts a Worker, posts {type: 2, data: <query>} to it, and gets
// {type: 3, data: {items: <a list of sections for each page>}}.
"use strict";
(() => {
  const QUERY = 2;
  const RESULT = 3;

  // The search reads "--redis" as "without redis", and "A2C_URL" as one word, which is not in the index. The index has
  // their parts, so the query asks for all parts. Short ones, as in --no-input, are optional beside longer ones.
  const isName = (word) => /^--\w|\w[-_]\w/.test(word);
  const parts = (name) => name.split(/[-_]+/).filter((part) => part !== "");
  const wanted = (name) => {
    const all = parts(name);
    const hasLong = all.some((part) => part.length > 3);
    return all.map((part) => (part.length > 3 || !hasLong ? `+${part}` : part)).join(" ");
  };
  const asWords = (query) => query.split(/\s+/).map((word) => (isName(word) ? wanted(word) : word)).join(" ");

  // The search does not know that words belong together: sections that have them side by side, as in --trusted-proxy,
  // come first, and so do their pages. Before all, pages in the reader's language come first.
  const isChinese = document.documentElement.lang === "zh";
  const isOwn = ([section]) => section.location.startsWith("zh/") === isChinese;
  const first = (list, is) => [...list.filter(is), ...list.filter((one) => !is(one))];
  const plain = (text) => text.replace(/<[^>]*>/g, "").toLowerCase().replace(/[-_\s]+/g, " ").trim();
  const ordered = (pages, query) => {
    const phrase = plain(query);
    if (!phrase.includes(" ")) return first(pages, isOwn);
    const has = (section) => plain(`${section.title} ${section.text}`).includes(phrase);
    const raised = (sections) => {
      const score = Math.max(...sections.map((section) => section.score)); // the theme folds sections of a low score
      return first(sections.map((section) => (has(section) ? { ...section, score } : section)), has);
    };
    return first(first(pages.map(raised), (sections) => sections.some(has)), isOwn);
  };

  // Browsers start no Worker for a page that is a file: a hidden frame runs its script instead.
  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this._scope = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source === this._scope) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const script = `<script>postMessage = (data) => parent.postMessage(data, "*")</script><script src="${url}"></script>`;
      this._scope.document.open();
      this._scope.document.write(script);
      this._scope.document.close();
      // Not earlier: open() takes all listeners away.
      this._loaded = new Promise((resolve) => this._scope.addEventListener("load", resolve));
    }

    postMessage(data) {
      this._loaded.then(() => this._scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  }

  const Base = location.protocol === "file:" ? FrameWorker : window.Worker;
  window.Worker = class extends Base {
    _query = "";

    postMessage(message, ...others) {
      const isQuery = message && message.type === QUERY;
      if (isQuery) this._query = message.data;
      super.postMessage(isQuery ? { ...message, data: asWords(message.data) } : message, ...others);
    }

    addEventListener(type, listener, ...others) {
      const reordered = (event) => {
        const { data } = event;
        if (!data || data.type !== RESULT) return listener(event);
        const items = ordered(data.data.items, this._query);
        return listener(new MessageEvent("message", { data: { ...data, data: { ...data.data, items } } }));
      };
      super.addEventListener(type, type === "message" ? reordered : listener, ...others);
    }
  };
})();
