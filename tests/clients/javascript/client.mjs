// The JavaScript socket.io-client, driven by a test through JSON lines (see ../peers/lines.py).
// One process holds several sockets: `who` names the one that is meant.
//
//   connect {who, url, options}   opens a socket; how that goes is reported
//   ask     {who, event, data}    the arguments of the ack, as a list
//   reply   {number, answer}      answers what was reported as `asked`
//
// Reported, each with `who`: connect, connect_error {message, data}, upgrade {transport}, disconnect {reason},
// asked {number, event, data} for an event that wants an ack, and every other event under its own name {data}.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { io } = createRequire(process.argv[2])("socket.io-client");
const sockets = new Map();
const acks = [];

const send = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const heard = (event, data) => send({ event, data });

const commands = {
  connect({ who, url, options }) {
    const socket = io(`${url}/smcp`, { forceNew: true, reconnectionDelay: 50, ...options });
    sockets.set(who, socket);
    socket.io.on("open", () => {
      socket.io.engine.once("upgrade", ({ name }) => heard("upgrade", { who, transport: name }));
    });
    socket.on("connect", () => heard("connect", { who, transport: socket.io.engine.transport.name }));
    socket.on("connect_error", ({ message, data }) => heard("connect_error", { who, message, data }));
    socket.on("disconnect", (reason) => heard("disconnect", { who, reason }));
    socket.onAny((event, data, ack) => {
      if (ack) heard("asked", { who, event, data, number: acks.push(ack) - 1 });
      else heard(event, { who, data });
    });
  },

  ask({ who, event, data }) {
    return new Promise((resolve) => sockets.get(who).emit(event, data, (...answer) => resolve(answer)));
  },

  reply({ number, answer }) {
    acks[number](answer);
  },
};

async function obey({ id, do: command, ...rest }) {
  try {
    const result = await commands[command](rest);
    send({ id, ok: true, result: result ?? null });
  } catch (error) {
    send({ id, ok: false, error: error.name, message: error.message });
  }
}

createInterface({ input: process.stdin })
  .on("line", (line) => obey(JSON.parse(line)))
  .on("close", () => process.exit());
