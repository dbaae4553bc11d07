"use strict";

const rhea = require("rhea");
const WebSocket = require("ws");
const { ServiceBusClient } = require("@azure/service-bus");
const { connectionString, endpoint, refusal, tell } = require("./common");

const PATHS = ["$servicebus/websocket", "$servicebus/websocket/", "$ServiceBus/WebSocket"];

async function exchanged(options) {
  const client = new ServiceBusClient(connectionString, {
    retryOptions: { maxRetries: 0 },
    webSocketOptions: { webSocket: WebSocket, ...options },
  });
  const body = Buffer.alloc(300_000, 7);
  await client.createSender("web").sendMessages([{ body: "by WebSocket" }, { body }]);
  const receiver = client.createReceiver("web");
  const found = await receiver.receiveMessages(2);
  for (const each of found) await receiver.completeMessage(each);
  await client.close();
  return [found[0].body, found[1].body.equals(body)];
}

/** A connection of rhea over a WebSocket: what it is told of its first message. */
function raw(url, protocols) {
  return new Promise((done, failed) => {
    const container = rhea.create_container();
    const connect = container.websocket_connect(WebSocket);
    container.on("error", failed);
    container.on("disconnected", (context) => failed(context.error ?? new Error("disconnected")));
    container.on("connection_open", (context) => context.connection.open_sender("raw"));
    container.once("sendable", (context) => context.sender.send({ body: "raw" }));
    container.on("accepted", (context) => {
      context.connection.close();
      done("accepted");
    });
    container.connect({
      connection_details: connect(url, protocols, {}),
      username: "RootManageSharedAccessKey",
      password: "SAS_KEY_VALUE",
      reconnect: false,
    });
  });
}

tell({
  secure: () => refusal(exchanged({})),

  async plain() {
    const told = [];
    for (const path of PATHS) {
      told.push(await raw(`ws://${endpoint}/${path}`, ["AMQPWSB10"]));
    }
    return told;
  },

  otherProtocol: () => refusal(raw(`ws://${endpoint}/$servicebus/websocket`, ["mqtt"])),
  otherPath: () => refusal(raw(`ws://${endpoint}/elsewhere`, ["AMQPWSB10"])),
});
