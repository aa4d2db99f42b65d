// Makes the search work in pages that are opened as files, and for options and variables such as --redis and A2C_URL.
// Every page loads it before the theme's script, which starts a Worker and posts {type: 2, data: <query>} to it.
"use strict";
(() => {
  const QUERY = 2;

  // The search reads "--redis" as "without redis", and "A2C_URL" as one word, which is not in the index. The index has
  // their parts, so the query asks for all parts; short ones, as in --no-input, are optional.
  const isName = (word) => /^--\w|\w_\w/.test(word);
  const parts = (name) => name.split(/[-_]+/).filter((part) => part !== "");
  const wanted = (name) =>
    parts(name).map((part, place, all) => (part.length > 3 || all.length === 1 ? `+${part}` : part)).join(" ");
  const asWords = (query) => query.split(/\s+/).map((word) => (isName(word) ? wanted(word) : word)).join(" ");

  const readable = (message) =>
    message && message.type === QUERY ? { ...message, data: asWords(message.data) } : message;

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
    postMessage(message, ...others) {
      super.postMessage(readable(message), ...others);
    }
  };
})();
