({tools, computer, prefix, places}) => {
  const host = window.parent, names = new Map(tools);
  if (host === window) return;
  const requests = {
    "tools/call": ({name, arguments: given, ...rest}) => {
      const [tool, argument] = names.get(name) ?? [String(name).startsWith(prefix) ? name : prefix + name];
      return {...rest, name: tool, arguments: argument ? {...given, [argument]: computer} : given};
    },
    "resources/read": ({uri, ...rest}) => {
      const [pages, others] = places, text = String(uri);
      const isOwn = places.some((place) => text.startsWith(place));
      return {...rest, uri: isOwn ? text : (text.startsWith("ui://") ? pages : others) + text};
    },
  };
  const sent = (message) => message?.params && Object.hasOwn(requests, message.method)
    ? {...message, params: requests[message.method](message.params)} : message;
  const parent = {postMessage: (message, ...rest) => host.postMessage(sent(message), ...rest)};
  Object.defineProperty(window, "parent", {value: parent});
  window.addEventListener("message", (event) => {
    if (event.source === host) Object.defineProperty(event, "source", {value: parent});
  }, true);
}
