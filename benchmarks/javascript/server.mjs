// Node's socket.io as a relay: seats by name, emitWithAck to the computer's socket, its answer acknowledged.
// The argument is the package.json beside whose node_modules it finds socket.io. Says `listening on URL`.

import { createServer } from "node:http";
import { createRequire } from "node:module";

const { Server } = createRequire(process.argv[2])("socket.io");

const http = createServer();
const smcp = new Server(http, { maxHttpBufferSize: 8 * 2 ** 20, pingInterval: 10_000, pingTimeout: 8_000 }).of("/smcp");
const offices = new Map();

smcp.on("connection", (socket) => {
  let office;

  socket.on("server:join_office", (data, ack) => {
    office = data.office_id;
    if (!offices.has(office)) offices.set(office, new Map());
    offices.get(office).set(data.name, socket);
    socket.join(office);
    socket.to(office).emit("notify:enter_office", data);
    ack(true, null);
  });

  socket.on("client:tool_call", async (data, ack) => {
    const computer = offices.get(office).get(data.computer);
    ack(await computer.timeout(30_000).emitWithAck("client:tool_call", data));
  });
});

http.listen(0, "127.0.0.1", () => console.log(`listening on http://127.0.0.1:${http.address().port}`));
